// `bellows launch --nnodes`, several launchers on this machine: who gets which ranks, and what
// their ends become.
#include <csignal>
#include <gmock/gmock.h>
#include <set>
#include <sstream>

#include "tests/nodes/job.h"

namespace bellows::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

const std::string kPrint =
    "echo $RANK $LOCAL_RANK $GROUP_RANK $ROLE_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE "
    "$ROLE_WORLD_SIZE $GROUP_WORLD_SIZE $ROLE_NAME $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT "
    "$TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID";

TEST(NodesTest, RanksOfUnlikeNodesGetTheEnvironmentThatTorchrunGives) {
  Job job({"--nnodes", "2", "--rdzv-id", "job7", "--max-restarts", "3"});
  job.add_shell({"--node-rank", "1", "--nproc", "2"}, kPrint);
  job.add_shell({"--node-rank", "0", "--nproc", "1"}, kPrint + "; echo port $MASTER_PORT");
  const auto results = job.wait();
  EXPECT_EQ(results[0].exit_code, 0) << results[0].err;
  EXPECT_EQ(results[1].exit_code, 0) << results[1].err;
  EXPECT_THAT(results[1].out, HasSubstr("[rank 0] 0 0 0 0 3 1 3 2 default 127.0.0.1 0 3 job7\n"));
  EXPECT_THAT(results[0].out,
              AllOf(HasSubstr("[rank 1] 1 0 1 1 3 2 3 2 default 127.0.0.1 0 3 job7\n"),
                    HasSubstr("[rank 2] 2 1 1 2 3 2 3 2 default 127.0.0.1 0 3 job7\n")));
  EXPECT_THAT(results[1].err, HasSubstr("this is node 0 of 2, ranks 0 to 0 of 3"));
  EXPECT_THAT(results[1].out, Not(HasSubstr("port " + std::to_string(job.port()))));
}

TEST(NodesTest, NumberedAsTheyComeTheyAgreeOnRanksAndMaster) {
  Job job(c10d("2:3"));
  const std::string script = "echo at $RANK $WORLD_SIZE $MASTER_PORT";
  job.add_shell({"--nproc", "2"}, script);
  job.add_shell({"--nproc", "1"}, script);
  std::set<std::string> ranks, ports;
  for (const auto& result : job.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::istringstream lines(result.out);
    for (std::string bracket, number, at, rank, world, port;
         lines >> bracket >> number >> at >> rank >> world >> port;) {
      EXPECT_EQ(world, "3");
      ranks.insert(rank);
      ports.insert(port);
    }
  }
  EXPECT_EQ(ranks, (std::set<std::string>{"0", "1", "2"}));
  EXPECT_EQ(ports.size(), 1U);
}

TEST(NodesTest, RankZeroCanListenOnTheSocketThatItsLauncherHolds) {
  Job job(c10d("2"));
  for (int i = 0; i < 2; ++i) job.add({}, {TEST_RANK, "master"});
  const auto results = job.wait();
  const std::string both = results[0].out + results[1].out;
  EXPECT_THAT(both, AllOf(HasSubstr("[rank 0] listens0"), HasSubstr("[rank 1] has none0")));
}

TEST(NodesTest, OneReportNamesTheFirstFailingRankAndItsNodeOnEveryNode) {
  Job job({"--nnodes", "3", "--rdzv-conf", kShortTimes});
  for (const char* rank : {"0", "1", "2"}) {
    job.add_shell(
        {"--node-rank", rank, "--nproc", "2"},
        "if [ $RANK = 3 ]; then sleep 0.3; echo bad data row 12 >&2; exit 7; fi; " + kSleeper);
  }
  for (const auto& result : job.wait()) {
    EXPECT_EQ(result.exit_code, 7);
    EXPECT_THAT(result.err, HasSubstr("bellows launch: node 1 ("));
    EXPECT_THAT(result.err, HasSubstr("): rank 3 failed first: exit code 7\n"));
    EXPECT_EQ(count_of(result.err, "| bad data row 12"), 1U) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank 2: stopped by the launcher (SIGTERM)"));
  }
}

TEST(NodesTest, AKilledRankIsTheCauseThoughTheOtherNodeNoticesAtOnce) {
  for (const char* victim : {"0", "1"}) {
    const TemporaryFolder folder;
    const std::string file = (folder / "gone").string();
    Job job(c10d("2"));
    for (int i = 0; i < 2; ++i) {
      job.add_shell({}, "if [ $RANK = " + std::string(victim) + " ]; then sleep 0.5; touch " +
                            file + "; kill -KILL $$; fi; until [ -e " + file +
                            " ]; do sleep 0.005; done; echo lost my peer >&2; exit 1");
    }
    for (const auto& result : job.wait()) {
      EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
      EXPECT_THAT(result.err, HasSubstr("rank " + std::string(victim) + " failed first: SIGKILL"));
    }
  }
}

TEST(NodesTest, AFailureStartsAllNodesAnew) {
  Job job(c10d("2", {"--max-restarts", "2"}));
  const std::string script =
      "echo start $TORCHELASTIC_RESTART_COUNT; "
      "if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then exit 5; fi; "
      "if [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then exec sleep 100; fi";
  for (int i = 0; i < 2; ++i) job.add_shell({}, script);
  for (const auto& result : job.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out,
                AllOf(HasSubstr("start 0"), HasSubstr("start 1"), HasSubstr("start 2")));
    EXPECT_THAT(result.err, HasSubstr("all ranks are started anew (restart 2 of 2)"));
  }
}

TEST(NodesTest, RestartsThatAreUsedUpEndAllWithTheRanksCode) {
  Job job(c10d("2", {"--max-restarts", "1"}));
  for (int i = 0; i < 2; ++i) job.add_shell({}, "[ $RANK = 1 ] && exit 5; exec sleep 100");
  for (const auto& result : job.wait()) {
    EXPECT_EQ(result.exit_code, 5);
    EXPECT_EQ(count_of(result.err, "rank 1 failed first: exit code 5"), 4U) << result.err;
  }
}

TEST(NodesTest, PreemptionOfOneNodeSavesAllAndEndsAllWith75) {
  for (const size_t asked : {0U, 1U}) {
    Job job(c10d("2", {"--max-restarts", "3", "--nproc", "2"}));
    for (int i = 0; i < 2; ++i) job.add_shell({}, kSaver);
    ASSERT_TRUE(job.wait_for("ready 4", 2));
    job[asked].signal(SIGTERM);
    for (const auto& result : job.wait()) {
      EXPECT_EQ(result.exit_code, 75) << result.err;
      EXPECT_EQ(count_of(result.out, "saved"), 2U);
      EXPECT_THAT(result.err, AllOf(HasSubstr("all ranks saved"), Not(HasSubstr("failed"))));
    }
  }
}

TEST(NodesTest, TheSameRequestToAllNodesIsOne) {
  Job job(c10d("2"));
  for (int i = 0; i < 2; ++i) {
    job.add_shell({},
                  "trap 'n=$((n+1))' TERM; n=0; echo ready; i=0; while [ $i -lt 50 ]; do "
                  "sleep 0.02; i=$((i+1)); done; echo signals $n; exit 75");
  }
  ASSERT_TRUE(job.wait_for("ready", 1));
  job[0].signal(SIGTERM);
  std::this_thread::sleep_for(300ms);  // has arrived from there
  job[1].signal(SIGTERM);
  for (const auto& result : job.wait()) {
    EXPECT_EQ(result.exit_code, 75) << result.err;
    EXPECT_THAT(result.out, HasSubstr("signals 1"));
  }
}

TEST(NodesTest, WhoeverDoesNotSaveEndsAllWithTheSignal) {
  Job job(c10d("2"));
  job.add_shell({}, kSaver);
  job.add_shell({}, kSleeper);
  ASSERT_TRUE(job.wait_for("ready", 1));
  job[0].signal(SIGTERM);
  for (const auto& result : job.wait()) EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
}

TEST(NodesTest, ARequestToEndWhileNodesAreAwaitedEndsAllOfThem) {
  Job job(c10d("3"));
  for (int i = 0; i < 2; ++i) job.add_shell({}, kSleeper);
  ASSERT_TRUE(job.gathered(job[1], "2 of 3 nodes are here"));
  job[1].signal(SIGTERM);
  for (const auto& result : job.wait(10s)) {
    EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST(NodesTest, ANodeThatComesLaterIsTakenInWithoutAFailure) {
  Job job(c10d("1:2", {"--max-restarts", "0"}));
  const std::string script =
      "echo ready $WORLD_SIZE $TORCHELASTIC_RESTART_COUNT; "
      "if [ $WORLD_SIZE = 1 ]; then exec sleep 100; fi";
  job.add_shell({}, script);
  ASSERT_TRUE(job.wait_for("ready 1 0", 1));
  job.add_shell({}, script);
  for (const auto& result : job.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("ready 2 0"));
    EXPECT_THAT(result.err, Not(HasSubstr("failed")));
  }
}

TEST(NodesTest, ANodeRankThatRunsAlreadyIsRefused) {
  Job job({"--nnodes", "2", "--rdzv-conf", kShortTimes});
  const std::string script = "echo ready; [ $RANK = 0 ] || exec sleep 4";
  job.add_shell({"--node-rank", "0"}, script);
  job.add_shell({"--node-rank", "1"}, script);
  ASSERT_TRUE(job.wait_for("ready", 1));
  const auto refused = job.add_shell({"--node-rank", "1"}, script).wait(20s);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("pid " + std::to_string(job[1].pid())));
  EXPECT_EQ(job[0].wait(20s).exit_code, 0);
  EXPECT_EQ(job[1].wait(20s).exit_code, 0);
}

TEST(NodesTest, ANodeTooManyWaitsAndSaysThatTheJobEndedWithoutIt) {
  Job job(c10d("2"));
  for (int i = 0; i < 2; ++i) job.add_shell({}, "echo ready; exec sleep 2");
  ASSERT_TRUE(job.wait_for("ready", 1));
  const auto spare = job.add_shell({}, "echo ready").wait(20s);
  EXPECT_EQ(spare.exit_code, 0);
  EXPECT_EQ(spare.out, "");
  EXPECT_THAT(spare.err, HasSubstr("the job has ended without this node"));
}

TEST(NodesTest, ANodeRankThatIsTakenWhileOthersAreAwaitedIsRefused) {
  Job job({"--nnodes", "3", "--rdzv-conf", kShortTimes});
  job.add_shell({"--node-rank", "0"}, "exit 0");
  auto& first = job.add_shell({"--node-rank", "1"}, "exit 0");
  ASSERT_TRUE(job.gathered(first, "2 of 3 nodes are here"));
  auto& second = job.add_shell({"--node-rank", "1"}, "exit 0");
  const auto refused = second.wait(20s);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--node-rank 1 is taken by the node on"),
                                 HasSubstr("pid " + std::to_string(first.pid()))));
  auto& third = job.add_shell({"--node-rank", "2"}, "exit 0");
  EXPECT_EQ(third.wait(20s).exit_code, 0);
  EXPECT_EQ(first.wait(20s).exit_code, 0);
}

TEST(NodesTest, AnotherJobsNameIsAnErrorThatNamesBoth) {
  Job job(c10d("2"));
  job.add_shell({}, "exit 0");
  ASSERT_TRUE(job.store_is_there());
  auto& wrong = job.add_shell({"--rdzv-id", "job8"}, "exit 0");
  const auto result = wrong.wait(20s);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("job 'job7'"), HasSubstr("job 'job8'"), HasSubstr("--rdzv-id")));
  job.add_shell({}, "exit 0");
  EXPECT_EQ(job[0].wait(20s).exit_code, 0);
}

TEST(NodesTest, OtherFlagsThanTheJobsAreRefused) {
  Job job(c10d("3"));
  job.add_shell({}, "exit 0");
  ASSERT_TRUE(job.store_is_there());
  const auto result = job.add_shell({"--max-restarts", "2"}, "exit 0").wait(20s);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("start all nodes with the same flags"));
}

TEST(NodesTest, AnEndpointThatIsNotReachedIsAnErrorThatNamesIt) {
  Job job({"--nnodes", "2", "--rdzv-conf", "join_timeout=1"});
  const auto result = job.add_shell({"--node-rank", "1"}, "exit 0").wait(20s);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("127.0.0.1:" + std::to_string(job.port())),
                                HasSubstr("within 1 s"), HasSubstr("Connection refused")));
  Job foreign({"--nnodes", "2", "--rdzv-conf", "join_timeout=1"});
  foreign.at({}, "192.0.2.1");
  const auto host = foreign.add_shell({"--node-rank", "0"}, "exit 0").wait(20s);
  EXPECT_EQ(host.exit_code, 3);
  EXPECT_THAT(host.err, AllOf(HasSubstr("192.0.2.1"), HasSubstr("--node-rank")));
}

TEST(NodesTest, AStoreBehindAnotherAddressListensAtAllAndNodesMayNameTheirOwn) {
  Job job({"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-conf",
           "is_host=true,last_call_timeout=1,join_timeout=20"});
  job.at({}, "192.0.2.1");  // as the others would see it
  const auto result =
      job.add_shell({"--local-addr", "127.0.0.3"}, "echo at $MASTER_ADDR").wait(20s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("at 127.0.0.3\n"));
}

TEST(NodesTest, NodesThatDoNotComeAreNamedAfterTheTimeOut) {
  Job job({"--nnodes", "3", "--rdzv-conf", "join_timeout=3"});
  job.add_shell({"--node-rank", "0"}, "exit 0");
  job.add_shell({"--node-rank", "2"}, "exit 0");
  for (const auto& result : job.wait(20s)) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, AllOf(HasSubstr("within 3 s not all nodes came: 2 of 3 nodes are here"),
                                  HasSubstr("not here: node rank 1")));
  }
}

TEST(NodesTest, AProgramThatOneNodeLacksEndsAll) {
  Job job(c10d("2", {"--max-restarts", "3"}));
  job.add_shell({}, kSleeper);
  // It is there when the launcher looks, and cannot be executed when its ranks are started.
  const TemporaryFolder folder;
  std::ofstream(folder / "empty") << "no program";
  std::filesystem::permissions(folder / "empty", std::filesystem::perms::owner_all);
  job.add({}, {(folder / "empty").string()});
  for (const auto& result : job.wait()) {
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("is no program"));
  }
}

TEST(NodesTest, RanksFindTheLibraryPathOfTheUser) {
  Job job(c10d("2"));
  const Words print{"sh", "-c", "echo path=$LD_LIBRARY_PATH. $BELLOWS_LIBRARY_PATH_BEFORE"};
  job.add({}, print, {{"LD_LIBRARY_PATH", "/my/folder"}});
  job.add({}, print, {{"LD_LIBRARY_PATH", ""}});
  const auto results = job.wait();
  EXPECT_THAT(results[0].out, HasSubstr("path=/my/folder.\n"));
  EXPECT_THAT(results[1].out, HasSubstr("path=.\n"));
}

TEST(NodesTest, LogFoldersHaveOneAttemptForEachStart) {
  const TemporaryFolder folder;
  Job job(c10d("2", {"--max-restarts", "1", "--log-dir", folder.path().string(), "-r", "3"}));
  for (int i = 0; i < 2; ++i) {
    job.add_shell({}, "echo I am $RANK; exit $((TORCHELASTIC_RESTART_COUNT ? 0 : RANK))");
  }
  for (const auto& result : job.wait()) EXPECT_EQ(result.exit_code, 0) << result.err;
  int logs = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.path().filename() != "stdout.log") continue;
    ++logs;
    EXPECT_THAT(entry.path().string(), HasSubstr("/attempt_"));
  }
  EXPECT_EQ(logs, 4);
}

TEST(NodesTest, QuitTellsWhatANodeWaitsFor) {
  Job job({"--nnodes", "2", "--rdzv-conf", kShortTimes});
  auto& node = job.add_shell({"--node-rank", "0"}, "exit 0");
  EXPECT_TRUE(job.gathered(node, "1 of 2 nodes is here: "));
  EXPECT_TRUE(node.running());
  EXPECT_THAT(node.err_so_far(), HasSubstr("not here: node rank 1"));
}

}  // namespace
}  // namespace bellows::testing
