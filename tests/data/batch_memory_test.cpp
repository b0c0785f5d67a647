#include "bellows/data/batch_memory.h"

#include <deque>
#include <gmock/gmock.h>
#include <limits>
#include <thread>
#include <vector>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

TEST(BatchMemoryTest, ABlockIsUsedAgainOnceItsTensorIsGone) {
  BatchMemory memory;
  const void* first = nullptr;
  {
    const at::Tensor tensor = memory.empty({4, 5}, at::kFloat);
    EXPECT_TRUE(tensor.is_contiguous());
    EXPECT_EQ(tensor.sizes(), (at::IntArrayRef{4, 5}));
    first = tensor.const_data_ptr();
    EXPECT_EQ(memory.stats().live, 1);
  }
  EXPECT_EQ(memory.stats().free, 1);
  EXPECT_EQ(memory.empty({20}, at::kInt).const_data_ptr(), first);
  EXPECT_EQ(memory.stats().allocated, 1);
}

TEST(BatchMemoryTest, AViewKeepsItsBlock) {
  BatchMemory memory;
  at::Tensor view = memory.empty({4, 5}, at::kFloat).fill_(3).select(0, 1);
  EXPECT_EQ(memory.stats().live, 1);
  const at::Tensor other = memory.empty({4, 5}, at::kFloat).fill_(9);
  EXPECT_EQ(view.sum().item<float>(), 15);
  view.reset();
  EXPECT_EQ(memory.stats().live, 1);
}

TEST(BatchMemoryTest, TensorsOutliveIt) {
  at::Tensor kept;
  {
    BatchMemory memory;
    kept = memory.empty({100}, at::kDouble).fill_(2);
  }
  EXPECT_EQ(kept.sum().item<double>(), 200);
}

TEST(BatchMemoryTest, ChangingSizesKeepNoMoreThanWasOnceInUse) {
  BatchMemory memory;
  std::deque<at::Tensor> held;
  for (int64_t i = 0; i < 200; ++i) {
    held.push_back(memory.empty({150 + i * 37 % 50, 64}, at::kFloat));
    if (held.size() > 4) held.pop_front();
  }
  const auto stats = memory.stats();
  EXPECT_LE(stats.bytes, stats.peak_bytes);
  EXPECT_LE(stats.peak_bytes, 5 * 200u * 64 * 4 * 9 / 8);
  EXPECT_LT(stats.allocated, 40);
}

TEST(BatchMemoryTest, ImpossibleSizesAreRefused) {
  BatchMemory memory;
  EXPECT_EQ(test::message_of<ValueError>([&] {
              memory.empty({2, -1}, at::kFloat);
            }),
            "batch memory: got shape [2, -1] of type Float, expected sizes of 0 or more and less "
            "than 2^63 bytes");
  EXPECT_THROW(memory.empty({std::numeric_limits<int64_t>::max() / 2, 2}, at::kFloat), ValueError);
  EXPECT_EQ(memory.empty({0, 3}, at::kFloat).numel(), 0);
}

TEST(BatchMemoryTest, ManyThreadsNeverShareABlock) {
  BatchMemory memory;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&memory, thread] {
      std::vector<at::Tensor> held;
      for (int i = 0; i < 300; ++i) {
        held.push_back(memory.empty({50}, at::kLong).fill_(thread * 1000 + i));
        if (held.size() == 3) {
          EXPECT_EQ(held[0].min().item<int64_t>(), thread * 1000 + i - 2);
          EXPECT_EQ(held[0].max().item<int64_t>(), thread * 1000 + i - 2);
          held.erase(held.begin());
        }
      }
    });
  }
  threads.clear();
  EXPECT_LE(memory.stats().allocated, 12);
  EXPECT_EQ(memory.stats().live, 0);
}

}  // namespace
}  // namespace bellows::data
