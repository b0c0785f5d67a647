#include "bellows/device/memory.h"

#include <atomic>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "bellows/device/stream.h"
#include "tests/device/sim/fixture.h"

namespace bellows {
namespace {

class SimMemory : public SimTest {
 protected:
  SimMemory() { empty_cache(sim0_); }

  at::Tensor of_size(int64_t bytes, c10::Device device) {
    return at::empty({bytes}, at::device(device).dtype(at::kByte));
  }
};

TEST_F(SimMemory, LiveTensorsAreCountedOnTheirDeviceAlone) {
  const auto before0 = memory_stats(sim0_), before1 = memory_stats(sim1_);
  {
    const at::Tensor a = of_size(3 * kMiB, sim0_);
    EXPECT_EQ(memory_stats(sim0_).allocated - before0.allocated, 3 * kMiB);
    EXPECT_EQ(memory_stats(sim1_).allocated, before1.allocated);
  }
  EXPECT_EQ(memory_stats(sim0_).allocated, before0.allocated);
}

TEST_F(SimMemory, FreedMemoryIsKeptForTheSameSizeAndGivenBackOnRequest) {
  const auto before = memory_stats(sim0_);
  of_size(2 * kMiB, sim0_);
  EXPECT_EQ(memory_stats(sim0_).reserved - before.reserved, 2 * kMiB);
  of_size(2 * kMiB, sim0_);
  EXPECT_EQ(memory_stats(sim0_).reserved - before.reserved, 2 * kMiB);
  empty_cache(sim0_);
  EXPECT_EQ(memory_stats(sim0_).reserved, before.reserved);
}

TEST_F(SimMemory, ThePeakIsTheMostAtOnceSinceItWasReset) {
  reset_peak(sim0_);
  const auto before = memory_stats(sim0_);
  { const at::Tensor a = of_size(kMiB, sim0_), b = of_size(4 * kMiB, sim0_); }
  EXPECT_EQ(memory_stats(sim0_).peak_allocated - before.allocated, 5 * kMiB);
  reset_peak(sim0_);
  EXPECT_EQ(memory_stats(sim0_).peak_allocated, memory_stats(sim0_).allocated);
}

TEST_F(SimMemory, SizesAreRoundedUpTo512Bytes) {
  const auto before = memory_stats(sim0_);
  const at::Tensor a = of_size(1, sim0_);
  EXPECT_EQ(memory_stats(sim0_).allocated - before.allocated, 512);
}

TEST_F(SimMemory, BeyondTheLimitIsLibTorchsErrorInOurWords) {
  const at::Tensor held = of_size(40 * kMiB, sim0_);
  EXPECT_THROW(of_size(40 * kMiB, sim0_), c10::OutOfMemoryError);
  EXPECT_SAYS(of_size(40 * kMiB, sim0_), "sim:0 is out of memory", "tried to allocate 40.0 MiB",
              "64.0 MiB");
  const at::Tensor elsewhere = of_size(40 * kMiB, sim1_);  // another device has its own
  EXPECT_EQ(elsewhere.numel(), 40 * kMiB);
}

TEST_F(SimMemory, AllOfTheLimitCanBeUsed) {
  const auto used = memory_stats(sim0_).allocated;
  const at::Tensor all = of_size(64 * kMiB - used, sim0_);
  EXPECT_THROW(of_size(1, sim0_), c10::OutOfMemoryError);
}

TEST_F(SimMemory, CacheOfOtherSizesMakesRoomAtTheLimit) {
  of_size(40 * kMiB, sim0_);
  EXPECT_NO_THROW(of_size(50 * kMiB, sim0_));
}

TEST_F(SimMemory, AfterOutOfMemoryADeviceWorksOn) {
  EXPECT_THROW(of_size(65 * kMiB, sim0_), c10::OutOfMemoryError);
  EXPECT_EQ(at::ones({3}, sim0_).sum().item<float>(), 3);
}

TEST_F(SimMemory, StatisticsCountFailures) {
  auto* allocator = c10::getDeviceAllocator(sim0_.type());
  allocator->resetAccumulatedStats(0);
  EXPECT_THROW(of_size(65 * kMiB, sim0_), c10::OutOfMemoryError);
  EXPECT_EQ(allocator->getDeviceStats(0).num_ooms, 1);
  EXPECT_EQ(allocator->getDeviceStats(0).num_alloc_retries, 1);
}

TEST_F(SimMemory, ViewsShareMemory) {
  const at::Tensor a = at::zeros({4, 4}, sim0_);
  const auto before = memory_stats(sim0_).allocated;
  const at::Tensor b = a.t().select(0, 1);
  EXPECT_EQ(memory_stats(sim0_).allocated, before);
  b.fill_(1);
  EXPECT_EQ(a.sum().item<float>(), 4);
}

TEST_F(SimMemory, MemoryOfAnotherStreamIsNotReusedWhileThatStreamUsesIt) {
  const at::Tensor host = at::ones({kMiB}, at::kByte).pin_memory();
  const Stream side = Stream::from_pool(sim0_);
  at::Tensor a = of_size(kMiB, sim0_);
  const void* memory = a.const_data_ptr();
  {
    const StreamGuard on(side);
    a.copy_(host, /*non_blocking=*/true);
  }
  a.record_stream(side.raw());
  a.reset();
  EXPECT_NE(of_size(kMiB, sim0_).const_data_ptr(), memory);
  side.synchronize();
  at::Tensor x = of_size(kMiB, sim0_), y = of_size(kMiB, sim0_);
  EXPECT_TRUE(x.const_data_ptr() == memory || y.const_data_ptr() == memory);
}

TEST_F(SimMemory, ThreadsOfOneStreamDoNotOverwriteWhatACopyStillReads) {
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) at::ones({1000}, sim0_).mul(3);
  });
  int wrong = 0;
  for (int i = 0; i < 3000; ++i) {
    at::Tensor from = at::full({1000}, static_cast<float>(i), sim0_);
    const at::Tensor to = from.clone();
    from.reset();  // its memory is free; the copy from it may not have run
    wrong += to.cpu()[999].item<float>() != static_cast<float>(i);
  }
  stop = true;
  other.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(SimMemory, EmptyingTheCacheWaitsForCopiesFromIt) {
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) empty_cache(sim0_);
  });
  int wrong = 0;
  for (int i = 0; i < 500; ++i) {
    at::Tensor from = at::full({100000}, static_cast<float>(i), sim0_);
    const at::Tensor to = from.clone();
    from.reset();
    wrong += to.cpu()[99999].item<float>() != static_cast<float>(i);
  }
  stop = true;
  other.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(SimMemory, MemoryUsedByAStreamOfAnotherDeviceIsHadBackAtTheLimit) {
  const at::Tensor host = at::ones({1}).pin_memory();
  const Stream side = Stream::from_pool(sim1_);
  at::Tensor a = of_size(50 * kMiB, sim0_);
  const at::Tensor there = at::zeros({1}, sim1_);
  {
    const StreamGuard on(side);
    there.copy_(host, /*non_blocking=*/true);
  }
  a.record_stream(side.raw());
  a.reset();
  EXPECT_NO_THROW(of_size(60 * kMiB, sim0_));
}

TEST_F(SimMemory, TheCacheHoldsNoMoreThanWasEverInUse) {
  empty_cache(sim1_);
  const auto before = memory_stats(sim1_);
  for (int64_t i = 1; i < 200; ++i) of_size(i * 4096, sim1_);
  EXPECT_LE(memory_stats(sim1_).reserved - before.reserved,
            std::max<int64_t>(before.peak_allocated, 200 * 4096));
}

TEST_F(SimMemory, PinnedMemoryIsHostMemoryThatKnowsItself) {
  const at::Tensor pinned = at::empty({1000}, at::TensorOptions().pinned_memory(true));
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_TRUE(pinned.slice(0, 10).is_pinned());
  EXPECT_TRUE(pinned.device().is_cpu());
  EXPECT_FALSE(at::empty({1000}).is_pinned());
  EXPECT_TRUE(at::ones({3}).pin_memory().is_pinned());
  EXPECT_SAYS(at::empty({3}, at::device(sim0_).pinned_memory(true)),
              "only CPU tensors can be pinned");
}

TEST_F(SimMemory, ThreadsMayAllocateAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const at::Tensor a = of_size(1 + 1000 * (i % 7), t % 2 == 0 ? sim0_ : sim1_);
        a.fill_(i % 100);
        EXPECT_EQ(a[0].item<uint8_t>(), i % 100);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace bellows
