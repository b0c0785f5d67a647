// `bellows train` below `bellows launch`.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <thread>

#include <gtest/gtest.h>

#include "tests/cli/bellows_program.h"

namespace bellows::testing {
namespace {
namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A training on two ranks that does not end by itself.
std::vector<std::string> two_trainings(const SmallRun& run) {
  return {BELLOWS_PROGRAM,
          "launch",
          "--nproc-per-node",
          "2",
          "--",
          "sh",
          "-c",
          "exec \"$0\" train \"$1\" --run \"$2\" --set run.epochs=100000",
          BELLOWS_PROGRAM,
          run.config(),
          run.run_folder()};
}

void wait_for_hold(Process& process) {
  constexpr uint64_t kTerm = uint64_t{1} << (SIGTERM - 1);
  for (uint64_t held = 0; (held & kTerm) == 0 && process.running();) {
    std::ifstream status("/proc/" + std::to_string(process.pid()) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigBlk:")) held = std::stoull(line.substr(7), nullptr, 16);
    }
  }
}

TEST(LaunchTrainingTest, ARequestToEndAtAnyMomentFromTheStartSavesAllRanks) {
  for (const int milliseconds : {0, 20, 150, 500, 1500}) {
    const SmallRun run;
    Process process(two_trainings(run), with_libtorch());
    wait_for_hold(process);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    process.signal(SIGTERM);
    const auto result = process.wait(std::chrono::seconds(60));
    EXPECT_EQ(result.exit_code, 75) << "after " << milliseconds << " ms: " << result.err;
    EXPECT_TRUE(fs::exists(run.run_folder() + "/checkpoints/last/checkpoint.json"));
  }
}

TEST(LaunchTrainingTest, TrainingSpeaksToTheLauncherAndAFailedRankEndsTheJob) {
  const SmallRun run;
  Process process(two_trainings(run), with_libtorch());
  while (process.running() && !fs::exists(run.run_folder() + "/checkpoints/last")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  process.signal(SIGQUIT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::string id = std::to_string(process.pid());
  std::ifstream file("/proc/" + id + "/task/" + id + "/children");
  pid_t guard = 0, rank = 0, other = 0;
  file >> guard >> rank >> other;
  ASSERT_GT(other, 0);
  ::kill(other, SIGKILL);
  const auto result = process.wait(std::chrono::seconds(60));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, AllOf(HasSubstr("what the ranks are doing"),
                                Not(HasSubstr("has not said what it is doing")),
                                HasSubstr("rank 1 failed first: SIGKILL")));
}

}  // namespace
}  // namespace bellows::testing
