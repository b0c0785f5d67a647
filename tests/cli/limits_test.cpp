// `bellows train` with little of what a system gives: descriptors, memory, disk, standard streams.
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bellows/core/file.h"
#include "tests/cli/bellows_program.h"

namespace bellows::testing {
namespace {
namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// Runs the training under a line of shell that ends in "$@".
ProcessResult train_under(const std::string& shell, const SmallRun& run,
                          const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"sh", "-c", shell, "sh", BELLOWS_PROGRAM};
  const auto arguments = run.words(more);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return testing::run(words, with_libtorch());
}

TEST(LimitsTest, SixtyFourDescriptorsAreEnough) {
  const SmallRun run;
  const auto result =
      train_under("ulimit -n 64; exec \"$@\"", run,
                  {"--set", "data.workers=2", "--set", "checkpoint.asynchronous=true", "--set",
                   "checkpoint.every_steps=3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(LimitsTest, ClosedStandardStreamsDoNotGetIntoFiles) {
  const SmallRun run;
  const auto result = train_under("exec \"$@\" <&- >&- 2>&-", run);
  EXPECT_EQ(result.exit_code, 0);
  std::ifstream lines(run.run_folder() + "/metrics.jsonl");
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  }
  EXPECT_GT(count, 2);
  EXPECT_EQ(run.train({"--resume", "auto"}).exit_code, 0);
}

TEST(LimitsTest, TooLittleMemoryIsAnErrorWithAReason) {
  const SmallRun run;
  // 2.5 GB of address space for weights of 3 GB.
  const auto result =
      train_under("ulimit -v 2500000; exec \"$@\"", run, {"--set", "model.hidden=[1000000]"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("memory"));
}

TEST(LimitsTest, FileSizeLimitIsExitCode1AndTheCheckpointBeforeStays) {
  const SmallRun run;
  ASSERT_EQ(run.train().exit_code, 0);
  const std::string weights =
      read_file(fs::path(run.run_folder()) / "checkpoints/last/model.safetensors");
  for (const char* asynchronous : {"false", "true"}) {
    const auto result = train_under("ulimit -f 128; exec \"$@\"", run,
                                    {"--resume", "auto", "--set", "run.epochs=4", "--set",
                                     std::string("checkpoint.asynchronous=") + asynchronous});
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("File too large"));
    EXPECT_EQ(read_file(fs::path(run.run_folder()) / "checkpoints/last/model.safetensors"),
              weights);
  }
  EXPECT_EQ(run.train({"--resume", "auto", "--set", "run.epochs=3"}).exit_code, 0);
}

TEST(ResumeTest, CheckpointsThatAreAllDamagedAreNotOverwritten) {
  const SmallRun run;
  ASSERT_EQ(run.train().exit_code, 0);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(run.run_folder() + "/checkpoints")) {
    if (!entry.is_symlink()) files.push_back(entry.path() / "model.safetensors");
  }
  ASSERT_GE(files.size(), 2U);
  for (const fs::path& file : files) fs::resize_file(file, 100);
  const auto result = run.train({"--resume", "auto"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("none is whole"));
  EXPECT_THAT(result.err, HasSubstr("got 100 bytes"));
  for (const fs::path& file : files) EXPECT_TRUE(fs::exists(file));
  EXPECT_TRUE(fs::exists(run.run_folder() + "/metrics.jsonl"));
  EXPECT_EQ(run.train({"--overwrite"}).exit_code, 0);
}

TEST(ResumeTest, DamagedCheckpointThatWasAskedForIsExitCode3) {
  const SmallRun run;
  ASSERT_EQ(run.train().exit_code, 0);
  const fs::path checkpoint = fs::canonical(run.run_folder() + "/checkpoints/last");
  std::string bytes = read_file(checkpoint / "model.safetensors");
  bytes.back() ^= 1;
  std::ofstream(checkpoint / "model.safetensors") << bytes;
  const auto result = run.train({"--resume", checkpoint.string(), "--set", "run.epochs=3"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("its checksum is"));
}

TEST(ResumeTest, CheckpointOfANewerVersionIsNotOverwritten) {
  const SmallRun run;
  ASSERT_EQ(run.train().exit_code, 0);
  const fs::path file = fs::canonical(run.run_folder() + "/checkpoints/last") / "checkpoint.json";
  std::string text = read_file(file);
  text.replace(text.find("\"version\":2"), 11, "\"version\":9");
  std::ofstream(file) << text;
  const auto result = run.train({"--resume", "auto", "--set", "run.epochs=3"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("version 9"));
  EXPECT_EQ(read_file(file), text);
}

}  // namespace
}  // namespace bellows::testing
