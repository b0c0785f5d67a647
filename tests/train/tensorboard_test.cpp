#include "bellows/train/tensorboard.h"

#include <filesystem>
#include <limits>
#include <thread>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/support/process.h"

namespace bellows::train {
namespace {

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files.push_back(entry.path());
  return files;
}

TEST(SummaryWriterTest, WritesOneFileWithTensorBoardsName) {
  testing::TemporaryFolder folder;
  SummaryWriter writer(folder.path());
  writer.add_scalar("loss", 1.0, 1);
  writer.flush();
  ASSERT_EQ(files_in(folder.path()).size(), 1u);
  EXPECT_TRUE(files_in(folder.path())[0].filename().string().starts_with("events.out.tfevents."));
}

TEST(SummaryWriterTest, ResumeContinuesTheSameFileAndDropsWhatCameAfter) {
  testing::TemporaryFolder folder;
  Tree state;
  {
    SummaryWriter writer(folder.path());
    writer.add_scalar("loss", 1.0, 1);
    state = writer.state_dict();
    writer.add_scalar("loss", 2.0, 2);
  }
  const auto before = std::filesystem::file_size(files_in(folder.path())[0]);
  SummaryWriter resumed(folder.path());
  resumed.load_state_dict(state);
  resumed.add_scalar("loss", 3.0, 2);
  resumed.flush();
  ASSERT_EQ(files_in(folder.path()).size(), 1u);
  EXPECT_EQ(std::filesystem::file_size(files_in(folder.path())[0]), before);
  EXPECT_EQ(resumed.state_dict().at("records").integer(), 3);
}

TEST(SummaryWriterTest, HistogramOfNothingOrOfNanIsRefused) {
  testing::TemporaryFolder folder;
  SummaryWriter writer(folder.path());
  EXPECT_THROW(writer.add_histogram("w", at::empty({0}), 1), ValueError);
  EXPECT_THROW(writer.add_histogram("w", at::full({2}, std::numeric_limits<float>::quiet_NaN()), 1),
               ValueError);
}

TEST(SummaryWriterTest, ThreadsMayWriteAtOnce) {
  testing::TemporaryFolder folder;
  SummaryWriter writer(folder.path());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int step = 0; step < 100; ++step) writer.add_scalar(std::to_string(t), step, step);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(writer.state_dict().at("records").integer(), 401);
}

}  // namespace
}  // namespace bellows::train
