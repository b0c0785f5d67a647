// What the launcher says of ranks that fail, hang or are asked to end.
#include <csignal>
#include <gmock/gmock.h>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "tests/launch/program.h"

namespace bellows::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> rank_job(std::vector<std::string> flags, std::vector<std::string> acts) {
  flags.emplace_back(TEST_RANK);
  flags.insert(flags.end(), acts.begin(), acts.end());
  return launch_words(std::move(flags));
}

ProcessResult launch_rank(std::vector<std::string> flags, std::vector<std::string> acts) {
  return Process(rank_job(std::move(flags), std::move(acts))).wait(std::chrono::seconds(60));
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

void wait_for(Process& process, const std::string& words, size_t times) {
  while (process.running() && count(process.out_so_far(), words) < times) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST(LaunchReportTest, AnExceptionThatNobodyCatchesIsReportedWithoutAnyMacro) {
  const auto result = launch_rank({"--nproc", "2"}, {"connect", "throw-on-1", "hang"});
  EXPECT_EQ(result.exit_code, 128 + SIGABRT);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 1 failed first: SIGABRT"),
                                HasSubstr("exception:\n    | bad data row 12\n"),
                                HasSubstr("rank 0: stopped by the launcher (SIGTERM)")));
}

TEST(LaunchReportTest, AnExceptionOfAProgramThatKnowsNothingOfTheLauncherIsInItsLastLines) {
  const auto result = launch_rank({"--nproc", "2"}, {"throw-on-1", "hang"});
  EXPECT_EQ(result.exit_code, 128 + SIGABRT);
  EXPECT_THAT(result.err, AllOf(HasSubstr("last lines of its standard error"),
                                HasSubstr("    |   what():  bad data row 12")));
}

TEST(LaunchReportTest, ARankThatReportedItsTroubleFirstIsTheFirstHoweverLongItTakesToEnd) {
  const auto result =
      launch_rank({"--nproc", "3"}, {"connect", "report-and-linger-on-1", "notice"});
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_THAT(result.err, HasSubstr("rank 1 failed first: exit code 9"));
  EXPECT_THAT(result.err, HasSubstr("exception:\n    | bad data row 12\n"));
}

TEST(LaunchReportTest, WhatIsThrownNeedNotBeAnException) {
  EXPECT_THAT(launch_rank({}, {"connect", "throw-number"}).err, HasSubstr("exception:\n    | i\n"));
}

TEST(LaunchReportTest, HasTheLastTwentyLinesAndTheLog) {
  const TemporaryFolder folder;
  const auto result =
      launch_shell({"--log-dir", folder.path().string()}, "seq 1 100 >&2; echo unrelated; exit 3");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("    | 81\n"), HasSubstr("    | 100\n"),
                                Not(HasSubstr("    | 80\n")), Not(HasSubstr("| unrelated"))));
  EXPECT_THAT(result.err, HasSubstr("log: " + folder.path().string()));
  EXPECT_THAT(result.err, HasSubstr("attempt_0/0/stderr.log"));
  EXPECT_THAT(launch_shell({}, "echo said; exit 3").err, HasSubstr("    | said\n"));
  EXPECT_THAT(launch_shell({}, "exit 3").err, HasSubstr("it wrote nothing"));
}

TEST(LaunchReportTest, ASignalIsNamedWithItsLikelyCause) {
  const auto killed = launch_shell({"--nproc", "2"}, "[ $RANK = 1 ] && kill -KILL $$; sleep 50");
  EXPECT_EQ(killed.exit_code, 128 + SIGKILL);
  EXPECT_THAT(killed.err, HasSubstr("rank 1 failed first: SIGKILL (possibly out of memory"));
  const auto segfault = launch_shell({}, "kill -SEGV $$");
  EXPECT_EQ(segfault.exit_code, 128 + SIGSEGV);
  EXPECT_THAT(segfault.err, HasSubstr("SIGSEGV"));
  EXPECT_THAT(launch_shell({}, "sh -c 'kill -KILL $$'; exit $?").err,
              HasSubstr("exit code 137 (as shells report SIGKILL"));
}

TEST(LaunchReportTest, ARankThatDoesNotEndIsKilledAfterTheTimeGivenAndThatIsSaid) {
  const TemporaryFolder folder;
  const auto start = std::chrono::steady_clock::now();
  const auto result =
      launch_shell({"--nproc", "2", "--shutdown-timeout", "0.5"},
                   "if [ $RANK = 0 ]; then trap '' TERM; touch " + (folder / "ready").string() +
                       "; while :; do sleep 0.05; done; fi; until [ -e " +
                       (folder / "ready").string() + " ]; do sleep 0.01; done; exit 3");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("rank 0: stopped by the launcher (SIGKILL, as it had not ended "
                                    "0.5 s after SIGTERM)"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(LaunchReportTest, ARestartStartsAllRanksOnAnotherPortAndReportsEachFailure) {
  const auto result = launch_shell({"--nproc", "2", "--max-restarts", "2"},
                                   "[ $RANK = 0 ] || exec sleep 50; echo $MASTER_PORT; "
                                   "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 5; kill -9 $$");
  EXPECT_EQ(result.exit_code, 137);
  const auto ports = lines_of(result.out);
  EXPECT_EQ(std::set<std::string>(ports.begin(), ports.end()).size(), 3U) << result.out;
  EXPECT_EQ(count(result.err, "failed first"), 3U);
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 2"));
  EXPECT_THAT(result.err, Not(HasSubstr("restart 3")));
}

TEST(LaunchReportTest, AJobThatARestartHealedEndsWellAndItsRanksAreAllNew) {
  const auto result =
      launch_shell({"--nproc", "2", "--max-restarts", "3"},
                   "echo $TORCHELASTIC_RESTART_COUNT; "
                   "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit; [ $RANK = 0 ] && exit; "
                   "sleep 0.2; exit 5");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(lines_of(result.out), ::testing::UnorderedElementsAre("[rank 0] 0", "[rank 1] 0",
                                                                    "[rank 0] 1", "[rank 1] 1"));
  EXPECT_EQ(count(result.err, "rank 1 failed first: exit code 5"), 1U);
}

TEST(LaunchReportTest, QuitPrintsWhatEachRankIsDoing) {
  Process process(rank_job({"--nproc", "2"}, {"connect", "phase", "collective", "ready", "hang"}));
  wait_for(process, "ready", 2);
  process.signal(SIGQUIT);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  process.signal(SIGINT);
  const auto result = process.wait(std::chrono::seconds(20));
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 0, pid "), HasSubstr("rank 1, pid "),
                                HasSubstr("forward of step 12 for "),
                                HasSubstr("in all_reduce number 57 of bucket 3 for ")));
}

TEST(LaunchReportTest, ManyMessagesAndGarbageLeaveTheLauncherAsItIs) {
  const auto result = launch_rank(
      {"--nproc", "2"},
      {"garbage", "other-version", "connect", "garbage", "flood", "phase", "throw-on-1", "hang"});
  EXPECT_EQ(result.exit_code, 128 + SIGABRT);
  EXPECT_THAT(result.err, HasSubstr("    | bad data row 12\n"));
}

TEST(LaunchReportTest, MessagesOfManyThreadsArriveWhole) {
  Process process(rank_job({}, {"connect", "threads", "phase", "ready", "hang"}));
  wait_for(process, "ready", 1);
  process.signal(SIGQUIT);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  process.signal(SIGTERM);
  const auto result = process.wait(std::chrono::seconds(20));
  EXPECT_THAT(result.err, AllOf(HasSubstr("in all_reduce number "), Not(HasSubstr("refused"))));
}

TEST(LaunchReportTest, RanksAreAskedToStopOnTheChannelToo) {
  Process process(launch_words({"sh", "-c", "trap '' TERM; exec \"$0\" \"$@\"", TEST_RANK,
                                "connect", "ready", "wait-for-stop", "save"}));
  wait_for(process, "ready", 1);
  process.signal(SIGTERM);
  const auto result = process.wait(std::chrono::seconds(20));
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_THAT(result.out, HasSubstr("asked to stop within 30"));
}

TEST(LaunchReportTest, AProgramThatARankStartsDoesNotWriteToADescriptorThatIsNotTheChannel) {
  const auto result = launch_rank({}, {"connect", "exec"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[rank 0] connected\n[rank 0] alone\n");
  EXPECT_EQ(run({TEST_RANK, "connect", "phase"}).out, "alone\n");
  EXPECT_EQ(run({TEST_RANK, "connect"}, {{"BELLOWS_AGENT", "1:1:1:00"}}).out, "alone\n");
  EXPECT_EQ(run({TEST_RANK, "connect"}, {{"BELLOWS_AGENT", "1:::::"}}).out, "alone\n");
}

TEST(LaunchReportTest, WhoConnectsAfterTheEndOfRankZeroIsRefusedAndDoesNotWait) {
  const auto result = Process(launch_words({"--nproc", "2", "bash", "-c",
                                            "[ $RANK = 0 ] && exec \"$0\" master; sleep 0.5; "
                                            "echo </dev/tcp/127.0.0.1/$MASTER_PORT",
                                            TEST_RANK}))
                          .wait(std::chrono::seconds(20));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("[rank 0] listens"));
  EXPECT_THAT(result.err, HasSubstr("refused"));
}

TEST(LaunchReportTest, RankZeroAloneIsGivenTheSocketOfItsPortAndOnce) {
  EXPECT_EQ(launch_rank({}, {"master"}).out, "[rank 0] listens0\n");
  const auto two = launch_rank({"--nproc", "2"}, {"master"});
  EXPECT_THAT(two.out, AllOf(HasSubstr("[rank 0] listens0"), HasSubstr("[rank 1] has none0")));
  EXPECT_EQ(run({TEST_RANK, "master"}, {{"BELLOWS_MASTER_FD", "1"}, {"MASTER_PORT", "7"}}).out,
            "has none0\n");
}

}  // namespace
}  // namespace bellows::testing
