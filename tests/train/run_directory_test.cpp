#include "bellows/train/run_directory.h"

#include <cmath>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "tests/support/process.h"

namespace bellows::train {
namespace {

using ::testing::HasSubstr;

class RunDirectoryTest : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return folder_ / "run"; }
  void old_run() {
    RunDirectory run(path(), {});
    for (const char* name :
         {"config.toml", "metrics.jsonl", "summary.json", "events.out.tfevents.1", "notes.txt"}) {
      std::ofstream(path() / name) << "old";
    }
  }
  template <class Exception>
  std::string error_of(const ResumeMode& mode) {
    try {
      RunDirectory run(path(), mode);
    } catch (const Exception& error) {
      return error.what();
    }
    return "no error";
  }
  testing::TemporaryFolder folder_;
};

TEST_F(RunDirectoryTest, NewOneHasFoldersForCheckpointsAndLogs) {
  RunDirectory run(path(), {});
  EXPECT_TRUE(std::filesystem::is_directory(run.checkpoints()));
  EXPECT_TRUE(std::filesystem::is_directory(path() / "logs"));
  EXPECT_TRUE(run.resume_candidates().empty());
}

TEST_F(RunDirectoryTest, OldRunIsRefusedAndUntouched) {
  old_run();
  EXPECT_THAT(error_of<ValueError>({}), HasSubstr("--resume auto"));
  EXPECT_EQ(read_file(path() / "config.toml"), "old");
}

TEST_F(RunDirectoryTest, OverwriteRemovesTheRunAndNothingElse) {
  old_run();
  RunDirectory run(path(), {.overwrite = true});
  EXPECT_FALSE(std::filesystem::exists(path() / "config.toml"));
  EXPECT_FALSE(std::filesystem::exists(path() / "events.out.tfevents.1"));
  EXPECT_EQ(read_file(path() / "notes.txt"), "old");
}

TEST_F(RunDirectoryTest, OverwriteKeepsTheUsersFilesInItsFolders) {
  old_run();
  for (const char* name : {"checkpoints/mine.pt", "logs/app.log"})
    std::ofstream(path() / name) << "mine";
  std::filesystem::create_directories(path() / "checkpoints" / "step-00000001");
  std::ofstream(path() / "logs" / "rank-0.log") << "old";
  RunDirectory run(path(), {.overwrite = true});
  EXPECT_EQ(read_file(path() / "checkpoints" / "mine.pt"), "mine");
  EXPECT_EQ(read_file(path() / "logs" / "app.log"), "mine");
  EXPECT_FALSE(std::filesystem::exists(path() / "checkpoints" / "step-00000001"));
  EXPECT_FALSE(std::filesystem::exists(path() / "logs" / "rank-0.log"));
}

TEST_F(RunDirectoryTest, ConfigurationOfTheUsersIsNeverReplaced) {
  std::filesystem::create_directories(path());
  std::ofstream(path() / "config.toml") << "mine";
  EXPECT_THAT(error_of<ValueError>({}), HasSubstr("no run wrote"));
  EXPECT_THAT(error_of<ValueError>({.overwrite = true}), HasSubstr("no run wrote"));
  EXPECT_THAT(error_of<ValueError>({.resume = "auto"}), HasSubstr("no run wrote"));
  EXPECT_EQ(read_file(path() / "config.toml"), "mine");
}

TEST_F(RunDirectoryTest, AnyFileOfARunsNameThatNoRunWroteIsKept) {
  for (const char* name : {"metrics.jsonl", "summary.json", "logs/rank-0.log"}) {
    std::filesystem::create_directories(path() / "logs");
    std::ofstream(path() / name) << "mine";
    EXPECT_THAT(error_of<ValueError>({.overwrite = true}), HasSubstr(name));
    EXPECT_EQ(read_file(path() / name), "mine");
    std::filesystem::remove_all(path());
  }
}

TEST_F(RunDirectoryTest, ResumeAutoWithNothingSavedStartsAfresh) {
  old_run();
  RunDirectory run(path(), {.resume = "auto"});
  EXPECT_TRUE(run.resume_candidates().empty());
  EXPECT_FALSE(std::filesystem::exists(path() / "metrics.jsonl"));
}

TEST_F(RunDirectoryTest, ResumeFromAPathWithoutCheckpointIsRefused) {
  EXPECT_THAT(error_of<ValueError>({.resume = folder_ / "none"}), HasSubstr("no whole checkpoint"));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(RunDirectoryTest, ResumeAndOverwriteExcludeEachOther) {
  EXPECT_THAT(error_of<ValueError>({.resume = "auto", .overwrite = true}),
              HasSubstr("exclude each other"));
}

TEST_F(RunDirectoryTest, SecondUserOfTheFolderIsRefused) {
  RunDirectory run(path(), {});
  EXPECT_THAT(error_of<EnvironmentError>({}), HasSubstr("another process"));
}

TEST_F(RunDirectoryTest, FileInItsPlaceAndFolderBelowAFileAreNamed) {
  std::ofstream(path().string()) << "a file";
  EXPECT_THAT(error_of<EnvironmentError>({}), HasSubstr("is a file"));
  try {
    RunDirectory run(path() / "below", {});
    FAIL() << "no error";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path().string()));
  }
}

TEST(SummaryTest, HasTheDocumentedFields) {
  testing::TemporaryFolder folder;
  Summary summary{
      .status = "completed", .device = "cpu", .checkpoint = "checkpoints/step-00000010"};
  summary.progress.step = 10;
  summary.progress.epoch = 2;
  summary.progress.samples = 100;
  summary.progress.seconds = 4;
  summary.progress.wait_seconds = 1;
  summary.metrics = {{"test_accuracy", 0.5}, {"test_loss", std::nan("")}};
  write_summary(folder / "summary.json", summary);
  const auto json = nlohmann::json::parse(read_file(folder / "summary.json"));
  EXPECT_EQ(json["status"], "completed");
  EXPECT_EQ(json["epochs"], 2);
  EXPECT_EQ(json["steps"], 10);
  EXPECT_EQ(json["metrics"]["test_accuracy"], 0.5);
  EXPECT_TRUE(json["metrics"]["test_loss"].is_null());
  EXPECT_EQ(json["seconds"], 4);
  EXPECT_EQ(json["samples_per_second"], 25);
  EXPECT_EQ(json["data_wait_share"], 0.25);
  EXPECT_GT(json["peak_rss_mb"], 1);
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["world_size"], 1);
  EXPECT_EQ(json["checkpoint"], "checkpoints/step-00000010");
}

}  // namespace
}  // namespace bellows::train
