// Switching simulated devices on: in processes of their own.
#include <fstream>

#include "bellows/core/error.h"
#include "bellows/device/device.h"
#include "bellows/device/memory.h"
#include "tests/device/child.h"
#include "tests/device/sim/fixture.h"

namespace bellows {
namespace {

using ::testing::Test;

void expect_line(const std::string& output, const std::string& line) {
  EXPECT_NE(output.find(line), std::string::npos) << "expected: " << line << "\ngot:\n" << output;
}

TEST(SimSwitch, NothingIsThereUntilAskedFor) {
  const std::string out =
      probe("-u BELLOWS_SIM_DEVICES", "init sim accelerator threads list auto threads");
  expect_line(out, "sim = 0 of 0");
  expect_line(out, "accelerator = 0");
  expect_line(out, "list = 1");
  expect_line(out, "threads = 1\nlist");
  expect_line(out, "auto = cpu");
}

TEST(SimSwitch, TheVariableSaysHowManyAndInitSwitchesThemOn) {
  const std::string out = probe("BELLOWS_SIM_DEVICES=3 BELLOWS_SIM_MEMORY=2MiB",
                                "init sim list ones accelerator auto sim:2 sim:3");
  expect_line(out, "sim = 3 of 2097152");
  expect_line(out, "list = 4");
  expect_line(out, "ones = 2");
  expect_line(out, "accelerator = 1");
  expect_line(out, "auto = sim:0 (simulated, 2.0 MiB)");
  expect_line(out, "sim:2 = sim:2 (simulated, 2.0 MiB)");
  expect_line(out, "sim:3 ! environment error: sim:3: there are 3 simulated devices");
}

TEST(SimSwitch, WithoutItThereAreAsManyAsTheHighestAskedFor) {
  const std::string out = probe("", "init sim:1 sim sim:0 sim sim:5 sim sim:20 backward ones");
  expect_line(out, "sim:1 = sim:1 (simulated, 8.0 GiB)\nsim = 2 of");
  expect_line(out, "sim:0 = sim:0 (simulated, 8.0 GiB)\nsim = 2 of");
  expect_line(out, "sim:5 = sim:5 (simulated, 8.0 GiB)\nsim = 6 of");
  expect_line(out, "sim:20 ! environment error: sim:20: there are 6 simulated devices");
  expect_line(out, "BELLOWS_SIM_DEVICES=21");
  expect_line(out, "ones = 2");
}

TEST(SimSwitch, AHighDeviceMayBeTheFirstOneAskedFor) {
  expect_line(probe("", "init sim:20 sim"), "sim = 21 of");
}

TEST(SimSwitch, AfterABackwardItIsTooLateAndSaysSo) {
  const std::string out = probe("", "init backward sim:0 sim hpu");
  expect_line(
      out,
      "sim:0 ! environment error: simulated devices cannot be switched on any more: a backward");
  expect_line(out, "sim = 0 of");
  expect_line(out, "hpu ! LibTorch: ");
}

TEST(SimSwitch, OtherOptionsThanThoseInForceAreRefused) {
  const std::string out = probe("", "enable sim enable sim:2");
  expect_line(out, "sim = 2 of 4096\nenable = done");
  expect_line(out, "sim:2 ! environment error: sim:2: there are 2");
  expect_line(probe("BELLOWS_SIM_DEVICES=3", "init enable"),
              "enable ! environment error: simulated devices are switched on already, with other "
              "options: 3 devices");
}

TEST(SimSwitch, TheSameOptionsAgainAreNoError) {
  expect_line(probe("BELLOWS_SIM_DEVICES=2 BELLOWS_SIM_MEMORY=4096", "init enable sim"),
              "enable = done\nsim = 2 of 4096");
}

TEST(SimSwitch, BadVariablesAreNamed) {
  expect_line(
      probe("BELLOWS_SIM_DEVICES=many", "init"),
      "init ! value error: BELLOWS_SIM_DEVICES: got 'many', expected a number from 1 to 64");
  expect_line(probe("BELLOWS_SIM_DEVICES=0", "init"), "got '0'");
  expect_line(probe("BELLOWS_SIM_DEVICES=65", "init"), "got '65'");
  expect_line(
      probe("BELLOWS_SIM_MEMORY=lots", "sim:0"),
      "sim:0 ! value error: BELLOWS_SIM_MEMORY: got 'lots', expected a size such as 512MiB");
  expect_line(probe("BELLOWS_SIM_MEMORY=-3", "sim:0"), "BELLOWS_SIM_MEMORY: got '-3'");
  expect_line(probe("BELLOWS_SIM_COST_MODEL=/nowhere.toml", "sim:0"), "/nowhere.toml");
}

TEST(SimSwitch, AnEmptyVariableIsNone) {
  expect_line(probe("BELLOWS_SIM_DEVICES= BELLOWS_SIM_MEMORY=", "init sim sim:0"), "sim = 0 of");
}

TEST(SimSwitch, WhereTheyAreOnCudaIsRefused) {
  const std::string out =
      probe_with_stub("STUB_CUDA_DEVICES=2 BELLOWS_SIM_DEVICES=2", "init cuda cuda:1 auto module");
  expect_line(out,
              "cuda ! environment error: cuda cannot be used: simulated devices are switched on");
  expect_line(out, "cuda:1 ! environment error: ");
  expect_line(out, "auto = sim:0");
  expect_line(out, "module = none");
}

TEST(SimSwitch, SettingsOutOfRangeAreRefused) {
  EXPECT_THROW(sim::enable({.devices = -1}), ValueError);
  EXPECT_THROW(sim::device(-1), ValueError);
  EXPECT_THROW(sim::device(64), ValueError);
}

TEST(SimSwitch, NamesAreReadAndWritten) {
  EXPECT_EQ(device_name(parse_device("sim:3")), "sim:3");
  EXPECT_EQ(device_name(parse_device("sim")), "sim:0");
  EXPECT_EQ(device_name(c10::Device(c10::kCPU)), "cpu");
  EXPECT_EQ(device_name(c10::Device(c10::kCUDA, 1)), "cuda:1");
  for (const char* wrong : {"sim:", "sim:-1", "sim:x", "sim:128", "hpu:0"})
    EXPECT_THROW(parse_device(wrong), ValueError);
}

TEST_F(SimTest, DevicesAreListedWithTheirLimit) {
  const auto devices = list_devices();
  ASSERT_EQ(devices.size(), 5u);
  EXPECT_EQ(device_name(devices[4].device), "sim:3");
  EXPECT_EQ(devices[4].memory_bytes, 64 * kMiB);
  EXPECT_EQ(devices[4].name, "simulated");
}

}  // namespace
}  // namespace bellows
