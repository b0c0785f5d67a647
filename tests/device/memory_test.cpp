#include "bellows/device/memory.h"

#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows {
namespace {

TEST(MemoryTest, EverythingIsAllowedAndZeroOnTheCpu) {
  const c10::Device cpu(c10::kCPU);
  reset_peak(cpu);
  empty_cache(cpu);
  synchronize(cpu);
  const MemoryStats stats = memory_stats(cpu);
  EXPECT_EQ(stats.allocated + stats.peak_allocated + stats.reserved + stats.peak_reserved, 0);
}

TEST(MemoryTest, ADeviceWhoseKindIsNotLoadedIsAnEnvironmentError) {
  const c10::Device xpu(c10::kXPU, 0);
  EXPECT_THROW(memory_stats(xpu), EnvironmentError);
  EXPECT_THROW(reset_peak(xpu), EnvironmentError);
  EXPECT_THROW(empty_cache(xpu), EnvironmentError);
  EXPECT_THROW(synchronize(xpu), EnvironmentError);
}

}  // namespace
}  // namespace bellows
