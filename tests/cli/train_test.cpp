// `bellows train` and `bellows eval`, run as a user runs them: results, and every kind of bad
// input.
#include <filesystem>
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
using ::testing::Not;

nlohmann::json summary_of(const std::string& run) {
  return nlohmann::json::parse(read_file(fs::path(run) / "summary.json"));
}

/// One sentence, no stack, and nothing left behind.
void expect_refused(const SmallRun& run, const ProcessResult& result, int code,
                    const std::string& words) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_THAT(result.err, HasSubstr(words));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("frame #")));
  EXPECT_THAT(result.err, Not(HasSubstr("terminate")));
  EXPECT_FALSE(fs::exists(run.run_folder())) << "something was written";
}

TEST(TrainCommandTest, LeavesACompleteRunDirectory) {
  const SmallRun run;
  const auto result = run.train();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("epoch 2/2 done, step 80"));
  EXPECT_THAT(result.out, HasSubstr("test accuracy "));
  const fs::path folder = run.run_folder();
  for (const char* name :
       {"config.toml", "metrics.jsonl", "summary.json", "logs/rank-0.log",
        "checkpoints/step-00000080/model.safetensors", "checkpoints/last/model.safetensors",
        "checkpoints/best/model.safetensors"}) {
    EXPECT_TRUE(fs::exists(folder / name)) << name;
  }
  const auto summary = summary_of(folder);
  EXPECT_EQ(summary["status"], "completed");
  EXPECT_EQ(summary["steps"], 80);
  EXPECT_EQ(summary["epochs"], 2);
  EXPECT_EQ(summary["device"], "cpu");
  EXPECT_GT(summary["metrics"]["test_accuracy"], 0.9);
  EXPECT_EQ(summary["checkpoint"], "checkpoints/step-00000080");
  EXPECT_GT(summary["samples_per_second"], 0);
}

TEST(TrainCommandTest, SameSeedSameWeightsOtherSeedOthers) {
  const SmallRun run;
  ASSERT_EQ(run.train({}, "a").exit_code, 0);
  ASSERT_EQ(run.train({}, "b").exit_code, 0);
  ASSERT_EQ(run.train({"--set", "run.seed=4"}, "c").exit_code, 0);
  const auto weights = [&](const std::string& name) {
    return read_file(fs::path(run.run_folder(name)) / "checkpoints/last/model.safetensors");
  };
  EXPECT_EQ(weights("a"), weights("b"));
  EXPECT_NE(weights("a"), weights("c"));
}

TEST(TrainCommandTest, ResolvedConfigurationTrainsTheSame) {
  const SmallRun run;
  ASSERT_EQ(run.train({"--set", "optim.lr=2e-3"}, "a").exit_code, 0);
  const auto again =
      bellows({"train", run.run_folder("a") + "/config.toml", "--run", run.run_folder("b")});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_file(run.run_folder("a") + "/config.toml"),
            read_file(run.run_folder("b") + "/config.toml"));
  EXPECT_EQ(read_file(run.run_folder("a") + "/checkpoints/last/model.safetensors"),
            read_file(run.run_folder("b") + "/checkpoints/last/model.safetensors"));
}

TEST(TrainCommandTest, WorkersChangeNothing) {
  const SmallRun run;
  ASSERT_EQ(run.train({}, "a").exit_code, 0);
  ASSERT_EQ(run.train({"--set", "data.workers=2"}, "b").exit_code, 0);
  EXPECT_EQ(read_file(run.run_folder("a") + "/checkpoints/last/model.safetensors"),
            read_file(run.run_folder("b") + "/checkpoints/last/model.safetensors"));
}

TEST(TrainCommandTest, DefaultRunDirectoryIsRunsAndTheName) {
  const SmallRun run;
  ASSERT_EQ(bellows({"train", run.config(), "--set", "run.epochs=1"}, {}, run.folder()).exit_code,
            0);
  EXPECT_TRUE(fs::exists(run.folder() / "runs" / "small" / "summary.json"));
}

TEST(TrainCommandTest, DirectoryThatHoldsARunNeedsResumeOrOverwrite) {
  const SmallRun run;
  ASSERT_EQ(run.train({"--set", "run.epochs=1"}).exit_code, 0);
  const auto refused = run.train();
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--overwrite"));
  EXPECT_EQ(run.train({"--resume", "auto"}).exit_code, 0);
  EXPECT_EQ(summary_of(run.run_folder())["epochs"], 2);
  EXPECT_EQ(run.train({"--overwrite", "--set", "run.epochs=1"}).exit_code, 0);
  EXPECT_EQ(summary_of(run.run_folder())["epochs"], 1);
}

TEST(TrainCommandTest, FinishedRunResumedDoesNothingMore) {
  const SmallRun run;
  ASSERT_EQ(run.train().exit_code, 0);
  const auto before = read_file(run.run_folder() + "/checkpoints/last/model.safetensors");
  const auto lines = read_file(run.run_folder() + "/metrics.jsonl");
  const auto again = run.train({"--resume", "auto"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(before, read_file(run.run_folder() + "/checkpoints/last/model.safetensors"));
  EXPECT_EQ(lines, read_file(run.run_folder() + "/metrics.jsonl"));
  EXPECT_EQ(summary_of(run.run_folder())["status"], "completed");
  EXPECT_GT(summary_of(run.run_folder())["metrics"]["test_accuracy"], 0.9);
}

TEST(TrainCommandTest, ResumeAutoWithNothingSavedStartsAfresh) {
  const SmallRun run;
  EXPECT_EQ(run.train({"--resume", "auto"}).exit_code, 0);
}

TEST(TrainCommandTest, CheckpointOfAnotherModelIsRefusedWithItsEntries) {
  const SmallRun run;
  ASSERT_EQ(run.train({"--set", "run.epochs=1"}).exit_code, 0);
  const auto configuration = read_file(run.run_folder() + "/config.toml");
  const auto result = run.train({"--resume", "auto", "--set", "model.hidden=[16]"});
  EXPECT_EQ(configuration, read_file(run.run_folder() + "/config.toml"));
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("weight"));
}

TEST(TrainCommandTest, DamagedNewestCheckpointIsSkippedWithAWarning) {
  const SmallRun run;
  ASSERT_EQ(run.train({}, "whole").exit_code, 0);
  ASSERT_EQ(run.train().exit_code, 0);
  const fs::path damaged =
      fs::path(run.run_folder()) / "checkpoints/step-00000080/model.safetensors";
  std::string bytes = read_file(damaged);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(damaged, std::ios::binary) << bytes;
  const auto result = run.train({"--resume", "auto"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("skipping the checkpoint"));
  EXPECT_THAT(result.out, HasSubstr("step-00000040"));
  EXPECT_EQ(read_file(run.run_folder() + "/checkpoints/last/model.safetensors"),
            read_file(run.run_folder("whole") + "/checkpoints/last/model.safetensors"));
}

TEST(TrainCommandTest, SettingsOfTheOptimizerActOnAResumedRun) {
  const SmallRun run;
  ASSERT_EQ(run.train({"--set", "run.epochs=1"}).exit_code, 0);
  const auto before = read_file(run.run_folder() + "/checkpoints/last/model.safetensors");
  ASSERT_EQ(
      run.train({"--resume", "auto", "--set", "optim.lr=0.0", "--set", "optim.weight_decay=0.0"})
          .exit_code,
      0);
  EXPECT_EQ(summary_of(run.run_folder())["epochs"], 2);
  EXPECT_EQ(before, read_file(run.run_folder() + "/checkpoints/last/model.safetensors"));
}

TEST(TrainCommandTest, CopyOfARunWithoutHiddenFilesGoesOn) {
  const SmallRun run;
  ASSERT_EQ(run.train({"--set", "run.epochs=1"}).exit_code, 0);
  fs::copy(run.run_folder(), run.run_folder("copy"),
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove(run.run_folder("copy") + "/.lock");
  EXPECT_EQ(run.train({"--resume", "auto"}, "copy").exit_code, 0);
  EXPECT_EQ(summary_of(run.run_folder("copy"))["epochs"], 2);
}

TEST(TrainCommandTest, MomentumSwitchedOnAtAResumeIsInForce) {
  const SmallRun run;
  const std::vector<std::string> sgd{"--set", "optim.name=sgd", "--set", "run.epochs=1"};
  ASSERT_EQ(run.train(sgd).exit_code, 0);
  const auto resumed = [&](const std::string& momentum, const std::string& name) {
    fs::copy(run.run_folder(), run.run_folder(name),
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const auto result = run.train(
        {"--resume", "auto", "--set", "optim.name=sgd", "--set", "optim.momentum=" + momentum},
        name);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_file(run.run_folder(name) + "/checkpoints/last/model.safetensors");
  };
  EXPECT_NE(resumed("0.0", "without"), resumed("0.9", "with"));
}

TEST(TrainCommandTest, EmptyFlagIsBadUsage) {
  const SmallRun run;
  expect_refused(run, run.train({"--resume", ""}), 2, "--resume");
  expect_refused(run, run.train({"--device", ""}), 2, "--device");
}

TEST(TrainCommandTest, EarlyStoppingEndsTheRun) {
  const SmallRun run;
  const auto result = run.train(
      {"--set", "run.epochs=50", "--set", "optim.lr=0.0", "--set", "early_stopping.patience=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(summary_of(run.run_folder())["status"], "stopped");
  EXPECT_EQ(summary_of(run.run_folder())["epochs"], 3);
}

TEST(TrainCommandTest, LimitTakesTheFirstSamples) {
  const SmallRun run;
  ASSERT_EQ(run.train({"--set", "data.limit=32", "--set", "run.epochs=1"}).exit_code, 0);
  EXPECT_EQ(summary_of(run.run_folder())["steps"], 2);
}

TEST(TrainCommandTest, HelpListsFlagsAndExitCodes) {
  const auto result = bellows({"train", "--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* word : {"--set", "--run", "--resume", "--overwrite", "--device", "75"}) {
    EXPECT_THAT(result.out, HasSubstr(word));
  }
}

TEST(TrainCommandTest, BadUsageIsExitCode2) {
  EXPECT_EQ(bellows({"train"}).exit_code, 2);
  EXPECT_EQ(bellows({"train", "--frobnicate"}).exit_code, 2);
  const auto absent = bellows({"train", "/nowhere/c.toml"});
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_THAT(absent.err, HasSubstr("/nowhere/c.toml"));
}

TEST(TrainCommandTest, BadSettingsAreRefusedByName) {
  struct Case {
    const char* set;
    const char* words;
  };
  for (const auto& [set, words] :
       {Case{"optim.lrr=1", "did you mean optim.lr?"},
        Case{"optim.lr=abc", "optim.lr: got string \"abc\", expected number"},
        Case{"optim.lr=-0.1", "optim.lr"},
        Case{"optim.lr=nan", "optim.lr"},
        Case{"optim.lr=inf", "optim.lr"},
        Case{"optim.name=adamx", "optim.name"},
        Case{"data.batch_size=0", "data.batch_size"},
        Case{"data.batch_size=1.5", "data.batch_size"},
        Case{"data.batch_size=\"16\"", "data.batch_size"},
        Case{"data.workers=-1", "data.workers"},
        Case{"data.limit=-1", "data.limit"},
        Case{"run.epochs=-1", "run.epochs"},
        Case{"run.epochs=true", "run.epochs"},
        Case{"run.name=a/b", "run.name"},
        Case{"model.name=mpl", "Did you mean mlp?"},
        Case{"model.hidden=[0]", "model.hidden"},
        Case{"precision.mode=fp8", "precision.mode"},
        Case{"checkpoint.keep=0", "checkpoint.keep"},
        Case{"trainer.x=1", "unknown table [trainer]"},
        Case{"run.device=gpu", "gpu"},
        Case{"run.device=cuda:x", "cuda:x"}}) {
    const SmallRun run;
    SCOPED_TRACE(set);
    expect_refused(run, run.train({"--set", set}), 2, words);
  }
}

TEST(TrainCommandTest, UnknownKeyInTheFileHasItsLine) {
  const SmallRun run;
  std::ofstream(run.config(), std::ios::app) << "weight_decy = 0.9\n";
  expect_refused(run, run.train(), 2,
                 "small.toml:18: unknown key optim.weight_decy; did you mean optim.weight_decay?");
}

TEST(TrainCommandTest, AbsentDeviceIsExitCode3) {
  const SmallRun run;
  const auto result = run.train({"--device", "cuda:7"});
  expect_refused(run, result, 3, "--device cpu");
}

TEST(TrainCommandTest, MissingAndDamagedDataAreExitCode3) {
  {
    const SmallRun run;
    fs::remove(run.data() / "train-labels-idx1-ubyte");
    expect_refused(run, run.train(), 3, "train-labels-idx1-ubyte");
  }
  {
    const SmallRun run;
    fs::resize_file(run.data() / "train-images-idx3-ubyte", 5000);
    expect_refused(run, run.train(), 3, "train-images-idx3-ubyte");
  }
  {
    const SmallRun run;
    ASSERT_EQ(testing::run({"gzip", (run.data() / "train-images-idx3-ubyte").string()}).exit_code,
              0);
    fs::resize_file(run.data() / "train-images-idx3-ubyte.gz", 5000);
    expect_refused(run, run.train(), 3, "train-images-idx3-ubyte.gz");
  }
  {
    const SmallRun run;
    std::fstream labels(run.data() / "train-labels-idx1-ubyte",
                        std::ios::in | std::ios::out | std::ios::binary);
    labels.seekp(8 + 5);
    labels.put(11);
    labels.close();
    expect_refused(run, run.train(), 3, "label 5 is 11, expected 0 to 9");
  }
}

TEST(TrainCommandTest, RunDirectoryThatCannotBeWrittenIsExitCode3) {
  const SmallRun run;
  const auto result = bellows({"train", run.config(), "--run", "/dev/null/run"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("/dev/null"));
}

/// Trains with files limited to 64 KiB, less than the weights: the kernel refuses the write as it
/// does on a full disk.
TEST(TrainCommandTest, FileThatCannotBeWrittenWhileRunningIsExitCode1) {
  const SmallRun run;
  std::vector<std::string> words{"sh", "-c", "ulimit -f 128; exec \"$@\"", "sh"};
  for (const auto& word : bellows_words(run.words())) words.push_back(word);
  const auto result = testing::run(words, with_libtorch());
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("model.safetensors: write: File too large"));
  EXPECT_EQ(summary_of(run.run_folder())["status"], "failed");
  for (const auto& entry : fs::directory_iterator(run.run_folder() + "/checkpoints")) {
    ADD_FAILURE() << "half written: " << entry.path();
  }
}

TEST(TrainCommandTest, FullDiskIsExitCode1AndLeavesNothingHalfWritten) {
  const SmallRun run;
  const std::string mount = "mount -t tmpfs -o size=80k none " + run.run_folder() + " && ";
  fs::create_directories(run.run_folder());
  if (testing::run({"unshare", "-rm", "sh", "-c", mount + "true"}).exit_code != 0) {
    GTEST_SKIP() << "this machine lets tests mount no file system";
  }
  std::vector<std::string> words{"unshare",
                                 "-rm",
                                 "sh",
                                 "-c",
                                 mount + "\"$@\"; code=$?; for f in $(ls -A " + run.run_folder() +
                                     "/checkpoints); do echo leftover: $f >&2; done; exit $code",
                                 "sh"};
  for (const auto& word : bellows_words(run.words())) words.push_back(word);
  const auto result = testing::run(words, with_libtorch());
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("No space left on device"));
  EXPECT_THAT(result.err, Not(HasSubstr("leftover:")));
}

TEST(TrainCommandTest, NanLossIsExitCode1AndKeepsTheCheckpointBefore) {
  const SmallRun run;
  ASSERT_EQ(run.train({"--set", "run.epochs=1"}).exit_code, 0);
  const auto before = read_file(run.run_folder() + "/checkpoints/last/model.safetensors");
  const auto result = run.train({"--set", "optim.lr=1e30", "--set", "run.epochs=9"}, "nan");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the loss is NaN or infinite at step"));
  EXPECT_EQ(summary_of(run.run_folder("nan"))["status"], "failed");
  EXPECT_EQ(before, read_file(run.run_folder() + "/checkpoints/last/model.safetensors"));
}

TEST(TrainCommandTest, SecondProcessInTheSameDirectoryIsRefused) {
  const SmallRun run;
  Process first(bellows_words(run.words({"--set", "run.epochs=100000"})), with_libtorch());
  while (first.out_so_far().find("parameters") == std::string::npos && first.running()) {
  }
  const auto second = run.train({"--resume", "auto"});
  EXPECT_EQ(second.exit_code, 3) << second.err;
  EXPECT_THAT(second.err, HasSubstr("another process"));
}

TEST(EvalCommandTest, GivesTheMetricsOfTheRun) {
  const SmallRun run;
  ASSERT_EQ(run.train().exit_code, 0);
  const auto result = bellows({"eval", run.run_folder()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("test_accuracy "));
  const auto of_checkpoint = bellows({"eval", run.run_folder() + "/checkpoints/step-00000040"});
  EXPECT_EQ(of_checkpoint.exit_code, 0) << of_checkpoint.err;
  EXPECT_THAT(of_checkpoint.out, HasSubstr("step-00000040"));
}

TEST(EvalCommandTest, PathsWithoutARunAreRefused) {
  EXPECT_EQ(bellows({"eval", "/nowhere"}).exit_code, 2);
  TemporaryFolder empty;
  EXPECT_EQ(bellows({"eval", empty.path().string()}).exit_code, 2);
}

TEST(ModelsCommandTest, ArgumentsAreRefused) {
  EXPECT_EQ(bellows({"models", "extra"}).exit_code, 2);
}

TEST(ModelsCommandTest, ListsTheModels) {
  const auto result = bellows({"models"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* name : {"mlp", "convnet", "resnet18", "lstm", "transformer"})
    EXPECT_THAT(result.out, HasSubstr(name));
}

TEST(TrainPrecisionTest, EveryPrecisionTrainsResumesAndIsEvaluated) {
  const SmallRun run;
  for (const std::string mode : {"fp32", "tf32", "bf16", "fp16", "bf16-true"}) {
    const std::vector<std::string> how{"--set", "precision.mode=\"" + mode + "\"",
                                       "--set", "optim.clip_norm=1.0",
                                       "--set", "optim.accumulate=2",
                                       "--set", "memory.checkpointing=\"blocks\""};
    const auto result = run.train(how, mode);
    ASSERT_EQ(result.exit_code, 0) << mode << result.err;
    const auto summary =
        nlohmann::json::parse(read_file(fs::path(run.run_folder(mode)) / "summary.json"));
    EXPECT_EQ(summary["steps"].get<int64_t>(), 40) << mode;
    EXPECT_GT(summary["metrics"]["test_accuracy"], 0.3) << mode;
    auto more = how;
    more.insert(more.end(), {"--resume", "auto", "--set", "run.epochs=3"});
    EXPECT_EQ(run.train(more, mode).exit_code, 0) << mode;
    const auto evaluated = bellows({"eval", run.run_folder(mode)});
    EXPECT_EQ(evaluated.exit_code, 0) << mode << evaluated.err;
  }
  const auto refused = run.train({"--set", "precision.mode=fp8"}, "fp8");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("precision.mode"));
  EXPECT_EQ(run.train({"--set", "memory.checkpointing=some"}, "x").exit_code, 2);
  EXPECT_EQ(run.train({"--set", "optim.accumulate=0"}, "x").exit_code, 2);
}

}  // namespace
}  // namespace bellows::testing
