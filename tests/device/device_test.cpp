#include "bellows/device/device.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/device/select.h"

namespace bellows {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <class E, class Fn>
std::string message_of(Fn fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParseDeviceTest, UnderstandsCpuAndCuda) {
  EXPECT_EQ(parse_device("cpu"), c10::Device(c10::kCPU));
  EXPECT_EQ(parse_device("cpu:0"), c10::Device(c10::kCPU));
  EXPECT_EQ(parse_device("cuda"), c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(parse_device("cuda:1"), c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(parse_device("cuda:127"), c10::Device(c10::kCUDA, 127));
}

TEST(ParseDeviceTest, RefusesAllElseAndListsWhatIsUnderstood) {
  for (const char* text :
       {"", "gpu", "cuda:-1", "cuda:x", "cuda:", "cuda:1x", "cuda: 1", "cuda:128",
        "cuda:99999999999", "cpu:1", "CPU", "cuda:0:0", "auto", "xla"}) {
    const std::string message = message_of<ValueError>([&] { parse_device(text); });
    EXPECT_THAT(message, AllOf(HasSubstr(std::string("got '") + text + "'"),
                               HasSubstr("expected cpu, cuda, cuda:N or sim:N")));
  }
}

TEST(ParseDeviceTest, NamesTheNearest) {
  EXPECT_THAT(message_of<ValueError>([] { parse_device("cudda:1"); }),
              HasSubstr("did you mean cuda?"));
  EXPECT_THAT(message_of<ValueError>([] { parse_device("cpi"); }), HasSubstr("did you mean cpu?"));
}

CudaDriver driver_with(size_t devices) {
  CudaDriver driver;
  driver.library = true;
  driver.hardware = true;
  driver.devices.assign(devices, {"Test GPU", uint64_t{80} << 30, 9, 0});
  return driver;
}

CudaReport report_of(CudaState state) {
  return {state, "the sentence", state == CudaState::usable ? "" : "the remedy"};
}

TEST(SelectDeviceTest, AutoTakesTheFirstUsableDevice) {
  const Selection selection = select_device("auto", report_of(CudaState::usable), driver_with(2));
  EXPECT_EQ(selection.choice.device, c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(selection.choice.reason, "cuda:0 (the sentence)");
  EXPECT_EQ(selection.warning, "");
}

TEST(SelectDeviceTest, AutoSaysWhenTheFirstStartWillBeSlow) {
  CudaReport report = report_of(CudaState::usable);
  report.remedy = "the first start is slow";
  EXPECT_EQ(select_device("auto", report, driver_with(1)).warning, "the first start is slow");
}

TEST(SelectDeviceTest, AutoTakesTheCpuQuietlyWhereThereIsNoGpu) {
  for (const CudaState state :
       {CudaState::driver_missing, CudaState::no_device, CudaState::cpu_build}) {
    const Selection selection = select_device("auto", report_of(state), {});
    EXPECT_EQ(selection.choice.device, c10::Device(c10::kCPU));
    EXPECT_EQ(selection.choice.reason, "cpu (the sentence)");
    EXPECT_EQ(selection.warning, "") << to_string(state);
  }
}

TEST(SelectDeviceTest, AutoWarnsWhereAGpuIsLeftIdle) {
  for (const CudaState state :
       {CudaState::driver_missing, CudaState::not_loaded, CudaState::cpu_build}) {
    const Selection selection = select_device("auto", report_of(state), driver_with(1));
    EXPECT_EQ(selection.choice.device, c10::Device(c10::kCPU));
    EXPECT_THAT(selection.warning, AllOf(HasSubstr("the sentence"), HasSubstr("the remedy")))
        << to_string(state);
  }
}

TEST(SelectDeviceTest, AutoNeverFallsToTheCpuSilentlyWhereTheDriverFails) {
  for (const CudaState state :
       {CudaState::driver_broken, CudaState::driver_too_old, CudaState::no_kernels}) {
    const std::string message = message_of<EnvironmentError>(
        [&] { select_device("auto", report_of(state), driver_with(1)); });
    EXPECT_THAT(message, AllOf(HasSubstr("the sentence"), HasSubstr("the remedy"),
                               HasSubstr("--device cpu")));
  }
}

TEST(SelectDeviceTest, ANamedDeviceIsTakenOrRefusedNeverReplaced) {
  EXPECT_EQ(select_device("cuda:1", report_of(CudaState::usable), driver_with(2)).choice.reason,
            "cuda:1 (Test GPU, 80.0 GiB)");
  EXPECT_EQ(select_device("cpu", report_of(CudaState::usable), driver_with(2)).choice.reason,
            "cpu (asked for)");
  for (const CudaState state :
       {CudaState::cpu_build, CudaState::driver_missing, CudaState::driver_broken,
        CudaState::no_device, CudaState::driver_too_old, CudaState::not_loaded,
        CudaState::no_kernels}) {
    const std::string message = message_of<EnvironmentError>(
        [&] { select_device("cuda", report_of(state), driver_with(1)); });
    EXPECT_THAT(message, AllOf(HasSubstr("cuda:0 cannot be used: the sentence; the remedy"),
                               HasSubstr("--device cpu")));
  }
}

TEST(SelectDeviceTest, AnIndexBeyondTheLastNamesHowManyThereAre) {
  EXPECT_THAT(
      message_of<EnvironmentError>(
          [] { select_device("cuda:2", report_of(CudaState::usable), driver_with(2)); }),
      AllOf(HasSubstr("cuda:2"), HasSubstr("has 2 CUDA device(s)"), HasSubstr("from 0 to 1")));
}

TEST(ListDevicesTest, TheCpuComesFirstWithTheMemoryOfTheHost) {
  const auto devices = list_devices();
  ASSERT_FALSE(devices.empty());
  EXPECT_TRUE(devices[0].device.is_cpu());
  EXPECT_GT(devices[0].memory_bytes, int64_t{1} << 28);
  EXPECT_FALSE(devices[0].name.empty());
  EXPECT_EQ(devices[0].compute_capability, "");
}

}  // namespace
}  // namespace bellows
