// `bellows launch … -- bellows train`, as a user runs it.
#include <csignal>
#include <filesystem>
#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bellows/checkpoint/safetensors.h"
#include "bellows/core/file.h"
#include "tests/cli/bellows_program.h"

namespace bellows::testing {
namespace {
namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::Not;

ProcessResult launch(const SmallRun& run, int ranks, std::vector<std::string> more,
                     const std::string& name) {
  std::vector<std::string> words{"launch", "--nproc-per-node", std::to_string(ranks), "--",
                                 BELLOWS_PROGRAM};
  for (const std::string& word : run.words(std::move(more), name)) words.push_back(word);
  return bellows(words);
}

nlohmann::json summary_of(const SmallRun& run, const std::string& name) {
  return nlohmann::json::parse(read_file(fs::path(run.run_folder(name)) / "summary.json"));
}

double largest_difference(const SmallRun& run, const std::string& a, const std::string& b) {
  const auto weights = [&](const std::string& name) {
    return checkpoint::read_safetensors(fs::path(run.run_folder(name)) /
                                        "checkpoints/last/model.safetensors");
  };
  double most = 0;
  const auto left = weights(a), right = weights(b);
  for (size_t i = 0; i < left.size(); ++i)
    most = std::max(most, left[i].second.sub(right[i].second).abs().max().item<double>());
  return most;
}

TEST(TrainOverRanksTest, IsOneProcessOnTheJoinedBatch) {
  const SmallRun run;
  ASSERT_EQ(run.train({"--set", "data.batch_size=32"}, "alone").exit_code, 0);
  const auto result = launch(run, 2, {}, "two");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("on each of 2 ranks over gloo, 32 in a step"));
  const auto alone = summary_of(run, "alone"), two = summary_of(run, "two");
  EXPECT_EQ(two["world_size"], 2);
  EXPECT_EQ(two["steps"], alone["steps"]);
  EXPECT_NEAR(two["metrics"]["test_loss"], alone["metrics"]["test_loss"], 1e-5);
  EXPECT_NEAR(two["metrics"]["train_loss"], alone["metrics"]["train_loss"], 1e-5);
  EXPECT_LT(largest_difference(run, "two", "alone"), 1e-5);
  EXPECT_TRUE(fs::exists(fs::path(run.run_folder("two")) / "logs/rank-1.log"));
  // The second rank reports nothing of its own.
  EXPECT_THAT(result.out, Not(HasSubstr("[rank1]")));
}

TEST(TrainOverRanksTest, InterruptedAndResumedItIsTheUnbrokenRun) {
  const SmallRun run;
  ASSERT_EQ(launch(run, 2, {}, "whole").exit_code, 0);
  ASSERT_EQ(launch(run, 2, {"--set", "run.epochs=1"}, "parts").exit_code, 0);
  const auto result = launch(run, 2, {"--resume", "auto"}, "parts");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(largest_difference(run, "whole", "parts"), 0);
}

TEST(TrainOverRanksTest, ARunThatIsThereIsRefusedOnce) {
  const SmallRun run;
  ASSERT_EQ(launch(run, 2, {"--set", "run.epochs=1"}, "run").exit_code, 0);
  const auto result = launch(run, 2, {}, "run");
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("--resume"));
}

}  // namespace
}  // namespace bellows::testing
