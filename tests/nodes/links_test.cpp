// Nodes with a network between them: what a cut, slow, stalled or broken connection makes of a job.
#include <csignal>
#include <fstream>
#include <gmock/gmock.h>

#include "tests/nodes/network.h"

namespace bellows::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

#define NEEDS_NAMESPACES() \
  if (const std::string why = no_namespaces(); !why.empty()) GTEST_SKIP() << why

/// Two nodes with a cable between them, whose ranks all-reduce with a time-out of 3 s; node 0 has
/// the store.
class CableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    NEEDS_NAMESPACES();
    cable_ = std::make_unique<Cable>();
  }
  Job start(const std::string& size, const std::string& steps) {
    // Launchers are more patient than ranks.
    Job job({"--nnodes", "2", "--rdzv-conf", "keep_alive_interval=20,heartbeat_timeout=20"}, 29400);
    for (int node = 0; node < 2; ++node) {
      job.at(cable_->in(node), Namespaces::address(0));
      job.add_shell(
          {"--node-rank", std::to_string(node)},
          "echo port $MASTER_PORT; exec " TEST_PARALLEL_RANK " 3000 reduce " + size + " " + steps);
    }
    return job;
  }
  std::unique_ptr<Cable> cable_;
};

TEST_F(CableTest, DelayedCollectivesEndWell) {
  cable_->delay(20ms);
  Job job = start("1000", "20");
  for (const auto& result : job.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
    EXPECT_THAT(result.out, HasSubstr("done"));
  }
}

TEST_F(CableTest, AStallShorterThanTheTimeOutIsSurvived) {
  Job job = start("1000", "3000");
  ASSERT_TRUE(job.wait_for("pid", 1));
  cable_->stall(true);
  std::this_thread::sleep_for(1500ms);
  cable_->stall(false);
  for (const auto& result : job.wait()) EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
}

TEST_F(CableTest, AStallLongerThanTheTimeOutIsAnErrorThatNamesTheOtherRank) {
  Job job = start("1000", "1000000000");
  ASSERT_TRUE(job.wait_for("pid", 1));
  std::this_thread::sleep_for(300ms);
  cable_->stall(true);
  ASSERT_TRUE(job.wait_for("ranks", 1));
  cable_->stall(false);  // so that the launchers hear of each other
  const auto results = job.wait();
  for (size_t node = 0; node < 2; ++node) {
    EXPECT_EQ(results[node].exit_code, 7) << results[node].err;
    EXPECT_THAT(results[node].out, HasSubstr("ranks " + std::to_string(1 - node)));
  }
}

TEST_F(CableTest, AConnectionThatIsResetInsideAPayloadIsAnErrorInTimeAndNoRanksFault) {
  cable_->delay(5ms);  // some of each payload is under way
  Job job = start("2000000", "1000000000");
  ASSERT_TRUE(job.wait_for("pid", 1));
  std::this_thread::sleep_for(500ms);
  std::string out = job[0].out_so_far();
  std::string port = out.substr(out.find("port ") + 5);
  port.resize(port.find('\n'));
  // All connections of node 1 but those to the stores of launchers and ranks.
  const auto cut = run(cable_->in(1) + Words{"ss", "-K", "-t", "state", "established",
                                             "not ( dport = :29400 or dport = :" + port + " )"});
  if (has(cut.err, "EOPNOTSUPP") || cut.out.empty()) GTEST_SKIP() << "ss -K resets nothing here";
  const auto before = std::chrono::steady_clock::now();
  ASSERT_TRUE(job.wait_for("ranks", 1));
  EXPECT_LT(std::chrono::steady_clock::now() - before, 4s);
  for (const auto& result : job.wait(20s)) {
    EXPECT_EQ(result.exit_code, 7) << result.err;
    EXPECT_THAT(result.out,
                HasSubstr("all ranks were heard from; the connection between them failed"));
  }
}

class NetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    NEEDS_NAMESPACES();
    network_ = std::make_unique<Network>(3);
  }
  /// As many nodes as the namespaces; the first has the store.
  void start(Job& job, const Words& command) {
    for (int node = 0; node < 3; ++node) {
      job.at(network_->in(node), Namespaces::address(0));
      job.add({}, command);
      if (node > 0) continue;
      ASSERT_TRUE(wait_until([&] { return has(job[0].err_so_far(), "meet at"); }));
    }
  }
  std::unique_ptr<Network> network_;
};

TEST_F(NetworkTest, ANodeWhoseLinkIsCutIsLeftBehindAndEndsByItself) {
  Job job(c10d("2:3", {"--max-restarts", "1"}), 29400);
  start(job, {"sh", "-c", "echo ready $WORLD_SIZE; [ $WORLD_SIZE = 2 ] && exit 0; exec sleep 100"});
  ASSERT_TRUE(job.wait_for("ready 3", 1));
  network_->cut(2);
  for (const size_t node : {0U, 1U}) {
    const auto result = job[node].wait(30s);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("was lost: nothing was heard from it for 3 s"));
    EXPECT_THAT(result.out, HasSubstr("ready 2"));
  }
  const auto cut = job[2].wait(30s);
  EXPECT_EQ(cut.exit_code, 3);
  EXPECT_THAT(cut.err, AllOf(HasSubstr("10.77.0.1:29400"), HasSubstr("has not answered for 3 s")));
}

TEST_F(NetworkTest, WithoutTheLinkToTheStoreTheOthersEndAndNameIt) {
  Job job(c10d("2:3", {"--max-restarts", "1"}), 29400);
  start(job, {"sh", "-c", kSleeper});
  ASSERT_TRUE(job.wait_for("ready 3", 1));
  network_->cut(0);
  for (const size_t node : {1U, 2U}) {
    const auto result = job[node].wait(30s);
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr("the node that has the job's store, 10.77.0.1:29400"));
  }
  EXPECT_EQ(job[0].wait(30s).exit_code, 3);
}

TEST_F(NetworkTest, TheStoreListensAtTheEndpointsAddressAlone) {
  Job job(c10d("3"), 29400);
  job.at(network_->in(0), Namespaces::address(0));
  job.add_shell({}, "exit 0");
  const auto listening = [&] {
    return run(network_->in(0) + Words{"ss", "-H", "-l", "-t", "-n"}).out;
  };
  ASSERT_TRUE(wait_until([&] { return has(listening(), ":29400"); }));
  EXPECT_THAT(listening(), HasSubstr("10.77.0.1:29400"));
  EXPECT_EQ(count_of(listening(), ":29400"), 1U);
}

TEST_F(NetworkTest, TrainingOverThreeNodesEndsWell) {
  const SmallRun run;
  Job job(c10d("3"), 29400);
  start(job, bellows_words(run.words()));
  for (const auto& result : job.wait(120s)) EXPECT_EQ(result.exit_code, 0) << result.err;
  std::ifstream file(run.run_folder() + "/summary.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("\"world_size\": 3"));
}

}  // namespace
}  // namespace bellows::testing
