// SIGINT, SIGTERM, SIGUSR1 and SIGKILL at any moment of `bellows train`.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bellows/core/file.h"
#include "bellows/core/text.h"
#include "tests/cli/bellows_program.h"

namespace bellows::testing {
namespace {
namespace fs = std::filesystem;

std::string weights(const SmallRun& run, const std::string& name) {
  return read_file(fs::path(run.run_folder(name)) / "checkpoints/last/model.safetensors");
}

void wait_for(Process& process, const std::string& words) {
  while (process.running() && process.out_so_far().find(words) == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Metrics without the values that depend on time.
std::vector<nlohmann::json> timeless_lines(const fs::path& file) {
  std::vector<nlohmann::json> lines;
  std::ifstream input(file);
  for (std::string line; std::getline(input, line);) {
    auto json = nlohmann::json::parse(line);
    for (const char* key : {"time", "samples_per_second", "data_wait_share"}) json.erase(key);
    lines.push_back(json);
  }
  return lines;
}

/// The weights and metrics of the run "whole".
void expect_same_as_whole(const SmallRun& run, const std::string& name = "run") {
  EXPECT_EQ(weights(run, "whole"), weights(run, name));
  EXPECT_EQ(timeless_lines(run.run_folder("whole") + "/metrics.jsonl"),
            timeless_lines(run.run_folder(name) + "/metrics.jsonl"));
}

TEST(SignalsTest, TermSavesAndTheResumedRunIsTheUnbrokenOne) {
  const SmallRun run;
  const std::vector<std::string> epochs{"--set", "run.epochs=30"};
  ASSERT_EQ(run.train(epochs, "whole").exit_code, 0);
  int interrupted = 0;
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    const std::string name = "run" + std::to_string(number);
    auto words = epochs;  // the way of saving, which must not matter, is another each time
    if (number != SIGINT) words.insert(words.end(), {"--set", "checkpoint.asynchronous=true"});
    Process process(bellows_words(run.words(words, name)), with_libtorch());
    wait_for(process, "epoch 2/");
    process.signal(number);
    const auto result = process.wait();
    EXPECT_EQ(result.exit_code, 75) << result.err;
    interrupted += result.exit_code == 75;
    EXPECT_EQ(nlohmann::json::parse(read_file(run.run_folder(name) + "/summary.json"))["status"],
              "interrupted");
    auto resume = epochs;
    resume.insert(resume.end(), {"--resume", "auto"});
    ASSERT_EQ(run.train(resume, name).exit_code, 0);
    expect_same_as_whole(run, name);
  }
  EXPECT_EQ(interrupted, 3);
}

/// Waits until the process holds SIGTERM back (or, a moment later, answers it).
void wait_for_hold(Process& process) {
  constexpr uint64_t kTerm = uint64_t{1} << (SIGTERM - 1);
  for (uint64_t held = 0; (held & kTerm) == 0 && process.running();) {
    std::ifstream status("/proc/" + std::to_string(process.pid()) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigBlk:") || line.starts_with("SigCgt:")) {
        held |= std::stoull(line.substr(7), nullptr, 16);
      }
    }
  }
}

TEST(SignalsTest, TermWhileStartingIsKeptAndAnsweredOnceStateCanBeSaved) {
  // From the loading of the first program to the first step. Only in the fraction of a millisecond
  // that the kernel and the dynamic loader take before the program's first instruction can the
  // signal end it.
  for (const int milliseconds : {0, 3, 10, 30, 60, 100, 150, 250, 400}) {
    const SmallRun run;
    Process process(bellows_words(run.words({"--set", "run.epochs=100000"})), with_libtorch());
    wait_for_hold(process);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    process.signal(milliseconds == 30 ? SIGUSR1 : SIGTERM);
    const auto result = process.wait();
    EXPECT_EQ(result.exit_code, 75) << "after " << milliseconds << " ms: " << result.err;
    EXPECT_TRUE(fs::exists(run.run_folder() + "/checkpoints/last/checkpoint.json"));
  }
}

TEST(SignalsTest, SecondSignalEndsAtOnce) {
  const SmallRun run;
  // One step of this takes about a second.
  Process process(bellows_words(run.words({"--set", "data.batch_size=640", "--set",
                                           "model.hidden=[4096, 4096]", "--set", "run.epochs=9"})),
                  with_libtorch());
  wait_for(process, "parameters");
  process.signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait().exit_code, 128 + SIGTERM);
}

TEST(SignalsTest, IgnoredSignalsStayIgnored) {
  const SmallRun run;
  Process process({"sh", "-c", "trap '' INT; exec \"$@\"", "sh", BELLOWS_PROGRAM, "train",
                   run.config(), "--run", run.run_folder(), "--set", "run.epochs=40"},
                  with_libtorch());
  wait_for(process, "epoch 1/");
  process.signal(SIGINT);
  EXPECT_EQ(process.wait().exit_code, 0);
}

/// Resumes the run and kills it, each time `later_by` milliseconds later, until it ends by itself.
void kill_until_done(const SmallRun& run, std::vector<std::string> settings, int later_by) {
  settings.insert(settings.end(), {"--resume", "auto"});
  int kills = 0;
  for (int milliseconds = 250;; milliseconds += later_by) {
    Process process(bellows_words(run.words(settings)), with_libtorch());
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    if (!process.running()) {
      EXPECT_EQ(process.wait().exit_code, 0);
      break;
    }
    process.signal(SIGKILL);
    ++kills;
  }
  EXPECT_GE(kills, 2);
}

TEST(SignalsTest, KilledAgainAndAgainItEndsWithTheWeightsOfTheUndisturbedRun) {
  const SmallRun run;
  const std::vector<std::string> settings{"--set", "run.epochs=60", "--set",
                                          "checkpoint.every_steps=7"};
  ASSERT_EQ(run.train(settings, "whole").exit_code, 0);
  kill_until_done(run, settings, 37);
  expect_same_as_whole(run);
}

/// With dropout, augmentation, worker threads and a schedule; BELLOWS_KILL_SECONDS (16) says for
/// how long it is killed, about every 2 seconds.
TEST(SignalsTest, KilledEveryTwoSecondsItEndsWithTheWeightsOfTheUndisturbedRun) {
  const char* wanted = std::getenv("BELLOWS_KILL_SECONDS");
  const std::chrono::seconds duration(wanted != nullptr ? std::stoi(wanted) : 16);
  const SmallRun run;
  std::ofstream(run.config()) << "[run]\nseed = 3\ndevice = \"cpu\"\nthreads = 1\nepochs = "
                              << duration.count() << "\n[data]\ndataset = \"mnist\"\nroot = \""
                              << run.data().string() << R"("
batch_size = 16
augment = ["crop", "flip"]
[model]
name = "transformer"
width = 16
heads = 2
feedforward = 16
dropout = 0.1
[schedule]
name = "linear"
[early_stopping]
patience = 1000
[checkpoint]
every_steps = 7
)";
  const auto words = [&](const std::string& name, const std::vector<std::string>& more) {
    return bellows_words(run.words(more, name));
  };
  ASSERT_EQ(testing::run(words("whole", {}), with_libtorch()).exit_code, 0);
  const auto end = std::chrono::steady_clock::now() + duration;
  int kills = 0;
  while (std::chrono::steady_clock::now() < end) {
    Process process(words("run", {"--resume", "auto", "--set", concat("data.workers=", kills % 3)}),
                    with_libtorch());
    std::this_thread::sleep_for(std::chrono::milliseconds(1500 + 397 * kills % 1000));
    if (!process.running()) break;
    process.signal(SIGKILL);
    ++kills;
  }
  EXPECT_EQ(testing::run(words("run", {"--resume", "auto"}), with_libtorch()).exit_code, 0);
  EXPECT_GE(kills, 2);
  RecordProperty("kills", kills);
  expect_same_as_whole(run);
}

TEST(SignalsTest, KilledWhileItSavesInTheBackgroundItEndsWithTheWeightsOfTheUndisturbedRun) {
  const SmallRun run;
  const std::vector<std::string> settings{"--set", "run.epochs=40",
                                          "--set", "checkpoint.every_steps=3",
                                          "--set", "checkpoint.asynchronous=true"};
  ASSERT_EQ(run.train({"--set", "run.epochs=40"}, "whole").exit_code, 0);
  kill_until_done(run, settings, 61);
  expect_same_as_whole(run);
}

TEST(SignalsTest, ClosedOutputDoesNotEndTraining) {
  const SmallRun run;
  const auto result =
      testing::run({"sh", "-c", "\"$@\" | head -c 1 >/dev/null; true", "sh", BELLOWS_PROGRAM,
                    "train", run.config(), "--run", run.run_folder()},
                   with_libtorch());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(run.run_folder() + "/summary.json"));
}

}  // namespace
}  // namespace bellows::testing
