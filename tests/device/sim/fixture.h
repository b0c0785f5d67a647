// Four simulated devices with 64 MiB each, for all tests of this program.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "bellows/device/sim.h"

namespace bellows {

inline constexpr int64_t kMiB = 1 << 20;

class SimTest : public ::testing::Test {
 protected:
  const c10::Device sim0_ = at(0);
  const c10::Device sim1_ = at(1);

 private:
  static c10::Device at(int index) {
    sim::enable({.devices = 4, .memory_bytes = 64 * kMiB});
    return sim::device(index);
  }
};

/// Whether `statement` throws something whose message holds every one of the given parts.
#define EXPECT_SAYS(statement, ...)                                                       \
  try {                                                                                   \
    statement;                                                                            \
    ADD_FAILURE() << #statement << " did not throw";                                      \
  } catch (const std::exception& error) {                                                 \
    for (const std::string part : {__VA_ARGS__})                                          \
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what(); \
  }

}  // namespace bellows
