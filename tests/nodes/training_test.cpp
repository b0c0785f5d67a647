// `bellows train` over several nodes, and what faults leave of it: nothing is trained twice or left
// out. BELLOWS_FAULT_REPEAT=20 repeats what is drawn.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <random>

#include <nlohmann/json.hpp>

#include "bellows/core/file.h"
#include "tests/nodes/job.h"

namespace bellows::testing {
namespace {
namespace fs = std::filesystem;

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr int kInterval = 25;  // steps between checkpoints

int repeats() {
  const char* text = std::getenv("BELLOWS_FAULT_REPEAT");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

class NodesTrainingTest : public ::testing::Test {
 protected:
  Words train(const std::string& name, int epochs, Words more = {}) const {
    return bellows_words(
        run_.words(Words{"--resume", "auto", "--set", "run.epochs=" + std::to_string(epochs),
                         "--set", "checkpoint.every_steps=" + std::to_string(kInterval)} +
                       more,
                   name));
  }
  ProcessResult alone(int ranks, const Words& command, const Words& flags = {}) const {
    const Words words = Words{BELLOWS_PROGRAM, "launch", "--nproc", std::to_string(ranks)} + flags +
                        Words{"--"} + command;
    return run(words, with_libtorch({{"OMP_NUM_THREADS", "1"}}));
  }
  fs::path folder(const std::string& name) const { return run_.run_folder(name); }
  std::string weights(const std::string& name) const {
    return read_file(folder(name) / "checkpoints/last/model.safetensors");
  }
  nlohmann::json json(const std::string& name, const std::string& file) const {
    return nlohmann::json::parse(read_file(folder(name) / file));
  }
  int64_t samples(const std::string& name) const {
    return json(name, "checkpoints/last/checkpoint.json")["parts"]["trainer"]["state"]["samples"];
  }
  bool has_checkpoint(const std::string& name) const {
    return fs::exists(folder(name) / "checkpoints/last/checkpoint.json");
  }
  /// Without the values that depend on time.
  std::vector<nlohmann::json> metrics(const std::string& name) const {
    std::vector<nlohmann::json> lines;
    std::ifstream input(folder(name) / "metrics.jsonl");
    for (std::string line; std::getline(input, line);) {
      auto json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_discarded()) continue;  // half written
      for (const char* key : {"time", "samples_per_second", "data_wait_share"}) json.erase(key);
      lines.push_back(json);
    }
    return lines;
  }
  int64_t last_step(const std::string& name) const {
    const auto lines = metrics(name);
    return lines.empty() ? 0 : lines.back()["step"].get<int64_t>();
  }
  SmallRun run_;
};

/// A launcher's ranks; the first child is its guard.
std::vector<pid_t> ranks_of(pid_t launcher) {
  const std::string id = std::to_string(launcher);
  std::ifstream file("/proc/" + id + "/task/" + id + "/children");
  std::vector<pid_t> children;
  for (pid_t pid = 0; file >> pid;) children.push_back(pid);
  if (!children.empty()) children.erase(children.begin());
  return children;
}

TEST_F(NodesTrainingTest, TwoNodesOfTwoRanksAreFourRanksOfOne) {
  ASSERT_EQ(alone(4, train("alone", 2)).exit_code, 0);
  Job job(c10d("2", {"--nproc", "2"}));
  for (int i = 0; i < 2; ++i) job.add({}, train("nodes", 2));
  for (const auto& result : job.wait(120s)) EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json("nodes", "summary.json")["world_size"], 4);
  EXPECT_EQ(weights("alone"), weights("nodes"));
  EXPECT_EQ(metrics("alone"), metrics("nodes"));
}

TEST_F(NodesTrainingTest, ARankThatIsKilledOnOneOfTwoNodesCostsNothingButTime) {
  ASSERT_EQ(alone(2, train("whole", 20)).exit_code, 0);
  std::mt19937 random(11);
  for (int round = 0; round < repeats(); ++round) {
    const std::string name = "run" + std::to_string(round);
    Job job(c10d("2", {"--max-restarts", "3"}));
    for (int i = 0; i < 2; ++i) job.add({}, train(name, 20));
    ASSERT_TRUE(wait_until([&] { return has_checkpoint(name); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
    const auto ranks = ranks_of(job[random() % 2].pid());
    ASSERT_EQ(ranks.size(), 1U);
    ::kill(ranks[0], SIGKILL);
    for (const auto& result : job.wait(120s)) {
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(result.err, HasSubstr("failed first: SIGKILL"));
    }
    EXPECT_EQ(weights("whole"), weights(name));
  }
}

TEST_F(NodesTrainingTest, RandomKillsOneAfterTheOtherLoseAtMostWhatWasNotSaved) {
  constexpr int kEpochs = 60;
  ASSERT_EQ(alone(2, train("whole", kEpochs)).exit_code, 0);
  std::mt19937 random(7);
  for (int round = 0; round < repeats(); ++round) {
    const std::string name = "run" + std::to_string(round);
    Process job(Words{BELLOWS_PROGRAM, "launch", "--nproc", "2", "--max-restarts", "50", "--"} +
                    train(name, kEpochs),
                with_libtorch({{"OMP_NUM_THREADS", "1"}}));
    ASSERT_TRUE(wait_until([&] { return has_checkpoint(name); }));
    int kills = 0;
    for (; kills < 5 && job.running(); ++kills) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 900));
      const auto ranks = ranks_of(job.pid());
      if (ranks.size() != 2) continue;
      const int64_t reached = last_step(name);
      const size_t resumed = count_of(job.out_so_far(), "resuming from");
      ::kill(ranks[random() % 2], SIGKILL);
      wait_until(
          [&] { return !job.running() || count_of(job.out_so_far(), "resuming from") > resumed; });
      const std::string out = job.out_so_far();
      const size_t at = out.rfind("/step-");
      if (at == std::string::npos || !job.running()) continue;
      const int64_t step = std::stoll(out.substr(at + 6));
      EXPECT_LE(reached - step, kInterval) << "killed after step " << reached;
    }
    const auto result = job.wait(240s);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_GE(count_of(result.err, "failed first: SIGKILL"), 2U);
    EXPECT_EQ(weights("whole"), weights(name));
    EXPECT_EQ(metrics("whole"), metrics(name));
    // Saves that were interrupted have left nothing.
    for (const auto& entry : fs::directory_iterator(folder(name) / "checkpoints")) {
      const std::string file = entry.path().filename();
      EXPECT_TRUE(file.starts_with("step-") || file == "last" || file == "best") << file;
    }
  }
}

/// A step has the same samples whatever the number of ranks: what a resumed epoch needs.
Words with_steps_of(int samples, Words train) {
  return Words{
             "sh", "-c",
             "exec \"$@\" --set data.batch_size=$((" + std::to_string(samples) + " / WORLD_SIZE))",
             "sh"} +
         train;
}

TEST_F(NodesTrainingTest, FromThreeNodesToTwoEachSampleIsTrainedOnOnceAnEpoch) {
  constexpr int kEpochs = 40, kSamples = 576;  // twelve steps of 48
  write_image_set(run_.folder() / "even", kSamples, 96);
  const Words data{"--set", "data.root=\"" + (run_.folder() / "even").string() + "\""};
  Job job(c10d("2:3", {"--max-restarts", "1"}));
  for (int i = 0; i < 3; ++i) {
    job.add({}, with_steps_of(48, train("run", kEpochs, data)));
    ASSERT_TRUE(job.store_is_there());
  }
  ASSERT_TRUE(wait_until([&] { return has_checkpoint("run"); }));
  job[2].signal(SIGKILL);
  ASSERT_TRUE(wait_until([&] { return has(job[0].err_so_far(), "this is node 0 of 2"); }));
  const int64_t before = samples("run");
  EXPECT_LT(before, kEpochs * kSamples);
  for (const size_t node : {0U, 1U}) {
    const auto result = job[node].wait(120s);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("was lost"));
  }
  const auto summary = json("run", "summary.json");
  EXPECT_EQ(summary["world_size"], 2);
  EXPECT_EQ(summary["steps"], kEpochs * kSamples / 48);
  EXPECT_EQ(samples("run"), kEpochs * kSamples);
}

TEST_F(NodesTrainingTest, ANodeThatComesLaterTakesPartFromTheStepThatWasSavedForIt) {
  constexpr int kEpochs = 60, kSamples = 640;
  Job job(c10d("1:2"));
  const Words command = with_steps_of(32, train("run", kEpochs));
  job.add({}, command);
  ASSERT_TRUE(wait_until([&] { return has_checkpoint("run"); }));
  job.add({}, command);
  for (const auto& result : job.wait(120s)) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, ::testing::Not(HasSubstr("failed")));
  }
  EXPECT_EQ(json("run", "summary.json")["world_size"], 2);
  EXPECT_EQ(json("run", "summary.json")["steps"], kEpochs * kSamples / 32);
  EXPECT_EQ(samples("run"), kEpochs * kSamples);
}

TEST_F(NodesTrainingTest, PreemptionOfOneNodeSavesAndTheJobGoesOnLater) {
  ASSERT_EQ(alone(2, train("whole", 30)).exit_code, 0);
  {
    Job job(c10d("2"));
    for (int i = 0; i < 2; ++i) job.add({}, train("run", 30));
    ASSERT_TRUE(wait_until([&] { return has_checkpoint("run"); }));
    job[1].signal(SIGTERM);
    for (const auto& result : job.wait()) EXPECT_EQ(result.exit_code, 75) << result.err;
  }
  ASSERT_LT(last_step("run"), last_step("whole"));
  Job job(c10d("2"));
  for (int i = 0; i < 2; ++i) job.add({}, train("run", 30));
  for (const auto& result : job.wait(120s)) EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(weights("whole"), weights("run"));
}

}  // namespace
}  // namespace bellows::testing
