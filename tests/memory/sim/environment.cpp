// Switches simulated devices on before any test runs a backward pass.
#include <gtest/gtest.h>

#include "bellows/device/sim.h"

namespace bellows::memory {
namespace {

class Devices : public ::testing::Environment {
  void SetUp() override { sim::enable({.devices = 2, .memory_bytes = int64_t{4} << 30}); }
};

[[maybe_unused]] const auto* const devices = ::testing::AddGlobalTestEnvironment(new Devices);

}  // namespace
}  // namespace bellows::memory
