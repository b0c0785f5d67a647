#include "bellows/train/metrics_file.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/process.h"

namespace bellows::train {
namespace {

class MetricsFileTest : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return folder_ / "metrics.jsonl"; }
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> all;
    std::ifstream input(path());
    for (std::string line; std::getline(input, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  testing::TemporaryFolder folder_;
};

TEST_F(MetricsFileTest, LineHasRankStepTimeAndValues) {
  MetricsFile file(path(), 3);
  file.write("log", 50, 1, {{"loss", 0.25}});
  ASSERT_EQ(lines().size(), 1u);
  const auto line = lines()[0];
  EXPECT_EQ(line["rank"], 3);
  EXPECT_EQ(line["step"], 50);
  EXPECT_EQ(line["epoch"], 1);
  EXPECT_EQ(line["loss"], 0.25);
  EXPECT_GT(line["time"], 1.6e9);
}

TEST_F(MetricsFileTest, NanAndInfinityAreNull) {
  MetricsFile file(path());
  file.write("log", 1, 0, {{"a", std::nan("")}, {"b", std::numeric_limits<double>::infinity()}});
  EXPECT_TRUE(lines()[0]["a"].is_null());
  EXPECT_TRUE(lines()[0]["b"].is_null());
}

TEST_F(MetricsFileTest, EightThreadsWriteWholeLines) {
  constexpr int kThreads = 8, kLines = 500;
  MetricsFile file(path());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kLines; ++i) file.write("log", i, t, {{"loss", i / 3.0}});
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(lines().size(), static_cast<size_t>(kThreads * kLines));
}

TEST_F(MetricsFileTest, ResumeKeepsTheLinesOfItsTimeAndDropsTheRest) {
  Tree state;
  {
    MetricsFile file(path());
    file.write("log", 1, 0, {});
    file.write("log", 2, 0, {});
    state = file.state_dict();
    file.write("log", 3, 0, {});
  }
  std::ofstream(path(), std::ios::app) << "{\"torn";
  MetricsFile resumed(path());
  resumed.load_state_dict(state);
  resumed.write("log", 4, 0, {});
  const auto all = lines();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1]["step"], 2);
  EXPECT_EQ(all[2]["step"], 4);
}

TEST_F(MetricsFileTest, WithoutResumeAnEarlierFileIsReplaced) {
  { MetricsFile(path()).write("log", 1, 0, {}); }
  MetricsFile(path()).write("log", 7, 0, {});
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0]["step"], 7);
}

}  // namespace
}  // namespace bellows::train
