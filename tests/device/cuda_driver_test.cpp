#include "bellows/core/cuda_driver.h"

#include <gmock/gmock.h>

#include "tests/device/child.h"

namespace bellows {
namespace {

using testing::HasSubstr;

TEST(CudaDriverTest, DevicesAreReadFromTheDriver) {
  EXPECT_THAT(
      probe_with_stub("STUB_CUDA_DEVICES=2 STUB_CUDA_VERSION=12040 STUB_CUDA_MEMORY=1000 "
                      "STUB_CUDA_CAPABILITY=8.6",
                      "driver"),
      HasSubstr(
          "library=1 init=0 name= version=12040 devices=[Stub GPU|1000|8.6][Stub GPU|1000|8.6]"));
}

TEST(CudaDriverTest, AFailingStartIsNamed) {
  EXPECT_THAT(
      probe_with_stub("STUB_CUDA_INIT=803", "driver"),
      HasSubstr("init=803 name=CUDA_ERROR_SYSTEM_DRIVER_MISMATCH version=13000 devices=\n"));
  EXPECT_THAT(probe_with_stub("STUB_CUDA_INIT=77", "driver"), HasSubstr("init=77 name= version"));
}

TEST(CudaDriverTest, HiddenDevicesAreNoDevice) {
  EXPECT_THAT(probe_with_stub("CUDA_VISIBLE_DEVICES=", "driver"),
              HasSubstr("init=100 name=CUDA_ERROR_NO_DEVICE"));
}

TEST(CudaDriverTest, PresenceNeedsNoWorkingDriver) {
  EXPECT_THAT(probe_with_stub("STUB_CUDA_INIT=999", "present"), HasSubstr("present = 1"));
}

TEST(CudaDriverTest, ProbingThisMachineNeverThrows) {
  const CudaDriver driver = probe_cuda_driver();
  EXPECT_EQ(driver.library, cuda_driver_present());
  EXPECT_EQ(driver.library, driver.library_error.empty());
  EXPECT_EQ(driver.library, driver.init.has_value());
}

}  // namespace
}  // namespace bellows
