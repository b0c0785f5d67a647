#include "bellows/core/cuda_state.h"

#include <gmock/gmock.h>
#include <set>

#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows {
namespace {

using testing::HasSubstr;

CudaFacts usable_facts() {
  CudaFacts facts;
  facts.libtorch_cuda_on_disk = true;
  facts.libtorch_folder = "/opt/libtorch";
  facts.module_on_disk = true;
  facts.loaded = true;
  facts.cuda_major = 13;
  facts.archs = parse_archs("8.0 9.0");
  facts.libtorch_devices = 1;
  facts.driver.library = true;
  facts.driver.init = 0;
  facts.driver.version = 13000;
  facts.driver.devices = {{"Test GPU", uint64_t{80} << 30, 9, 0}};
  facts.driver.hardware = true;
  return facts;
}

// What the state must be, written as independent rules in order of precedence.
CudaState expected(const CudaFacts& facts) {
  const auto& driver = facts.driver;
  if (!facts.libtorch_cuda_on_disk) return CudaState::cpu_build;
  if (!driver.library) return CudaState::driver_missing;
  if (driver.init == 999 || driver.init == 803) return CudaState::driver_broken;
  if (driver.init == 100 || driver.devices.empty()) return CudaState::no_device;
  if (driver.version == 12040) return CudaState::driver_too_old;
  if (!facts.module_on_disk || facts.loaded == std::optional(false)) return CudaState::not_loaded;
  if (facts.libtorch_devices == 0) return CudaState::driver_broken;
  if (driver.devices[0].major == 6) return CudaState::no_kernels;
  return CudaState::usable;
}

TEST(CudaStateTest, EveryCombinationOfFactsHasOneStateSentenceAndRemedy) {
  std::set<CudaState> seen;
  int combinations = 0;
  for (const bool on_disk : {false, true})
    for (const bool module : {false, true})
      for (const std::optional<bool> loaded :
           {std::optional<bool>(), std::optional(false), std::optional(true)})
        for (const bool library : {false, true})
          for (const int init : {0, 100, 803, 999})
            for (const int version : {12040, 13000, 14010})
              for (const size_t devices : {0, 1})
                for (const int major : {6, 9})
                  for (const std::optional<int> found :
                       {std::optional<int>(), std::optional(0), std::optional(1)}) {
                    CudaFacts facts = usable_facts();
                    facts.libtorch_cuda_on_disk = on_disk;
                    facts.module_on_disk = module;
                    facts.loaded = loaded;
                    facts.driver.library = library;
                    facts.driver.init = init;
                    facts.driver.version = version;
                    facts.driver.devices.resize(devices);
                    if (devices > 0) facts.driver.devices[0].major = major;
                    facts.libtorch_devices = found;
                    const CudaReport report = cuda_state(facts);
                    ASSERT_EQ(report.state, expected(facts)) << report.sentence;
                    ASSERT_FALSE(report.sentence.empty());
                    ASSERT_EQ(report.remedy.empty(), report.usable()) << report.remedy;
                    seen.insert(report.state);
                    ++combinations;
                  }
  EXPECT_EQ(combinations, 2 * 2 * 3 * 2 * 4 * 3 * 2 * 2 * 3);
  EXPECT_EQ(seen.size(), 8U) << "a state was never reached";
}

TEST(CudaStateTest, ACpuBuildIsToldApartWhereTheMachineHasAGpu) {
  CudaFacts facts = usable_facts();
  facts.libtorch_cuda_on_disk = false;
  const CudaReport report = cuda_state(facts);
  EXPECT_EQ(report.state, CudaState::cpu_build);
  EXPECT_THAT(report.sentence, HasSubstr("this LibTorch is a CPU build"));
  EXPECT_THAT(report.sentence, HasSubstr("/opt/libtorch"));
  EXPECT_THAT(report.sentence, HasSubstr("Test GPU"));
  EXPECT_THAT(report.remedy, HasSubstr("pip install torch"));
}

TEST(CudaStateTest, OnDiskButNotLoadedSaysHowToLoad) {
  CudaFacts facts = usable_facts();
  facts.loaded = false;
  const CudaReport report = cuda_state(facts);
  EXPECT_THAT(report.sentence, HasSubstr("present on disk but not loaded"));
  EXPECT_THAT(report.remedy, HasSubstr("bellows::init()"));
  EXPECT_THAT(report.remedy, HasSubstr("LibTorch::cuda"));
}

TEST(CudaStateTest, ATooLateLoadIsNotCalledABrokenInstallation) {
  CudaFacts facts = usable_facts();
  facts.loaded = false;
  facts.too_late = true;
  EXPECT_THAT(cuda_state(facts).sentence, HasSubstr("too late"));
  EXPECT_THAT(cuda_state(facts).remedy, HasSubstr("first in main()"));
}

TEST(CudaStateTest, ALoadErrorIsShown) {
  CudaFacts facts = usable_facts();
  facts.loaded = false;
  facts.load_error = "libcublas.so.13: cannot open shared object file";
  EXPECT_THAT(cuda_state(facts).sentence, HasSubstr("libcublas.so.13"));
  EXPECT_THAT(cuda_state(facts).remedy, HasSubstr("--no-deps"));
}

TEST(CudaStateTest, ATooOldDriverNamesBothVersions) {
  CudaFacts facts = usable_facts();
  facts.driver.version = 12040;
  const CudaReport report = cuda_state(facts);
  EXPECT_EQ(report.state, CudaState::driver_too_old);
  EXPECT_THAT(report.sentence, HasSubstr("12.4"));
  EXPECT_THAT(report.sentence, HasSubstr("CUDA 13"));
}

TEST(CudaStateTest, AnOlderMinorDriverOfTheSameMajorIsEnough) {
  CudaFacts facts = usable_facts();
  facts.driver.version = 13000;
  facts.cuda_major = 13;
  EXPECT_TRUE(cuda_state(facts).usable());
  facts.cuda_major = 0;  // unknown
  facts.driver.version = 11000;
  EXPECT_TRUE(cuda_state(facts).usable());
}

TEST(CudaStateTest, AMissingDriverDependsOnTheHardwareSeen) {
  CudaFacts facts = usable_facts();
  facts.driver = {};
  EXPECT_EQ(cuda_state(facts).sentence, "no NVIDIA driver");
  facts.driver.hardware = true;
  EXPECT_THAT(cuda_state(facts).sentence, HasSubstr("NVIDIA device is in this machine"));
  facts.driver.kernel_module = "580.65.06";
  EXPECT_THAT(cuda_state(facts).sentence, HasSubstr("580.65.06"));
  EXPECT_THAT(cuda_state(facts).remedy, HasSubstr("--gpus all"));
}

TEST(CudaStateTest, BrokenDriversHaveTheirOwnRemedies) {
  CudaFacts facts = usable_facts();
  facts.driver.init = 803;
  facts.driver.init_error = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
  EXPECT_THAT(cuda_state(facts).sentence, HasSubstr("803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"));
  EXPECT_THAT(cuda_state(facts).remedy, HasSubstr("restart the machine"));
  facts.driver.init = 34;
  EXPECT_THAT(cuda_state(facts).remedy, HasSubstr("stubs"));
}

TEST(CudaStateTest, NoDeviceNamesTheVariableThatHidesThem) {
  CudaFacts facts = usable_facts();
  facts.driver.init = 100;
  EXPECT_THAT(cuda_state(facts).remedy, HasSubstr("nvidia-smi"));
  facts.driver.visible_devices = "7";
  EXPECT_THAT(cuda_state(facts).sentence, HasSubstr("CUDA_VISIBLE_DEVICES is '7'"));
}

TEST(CudaStateTest, AUsableDeviceIsDescribed) {
  EXPECT_EQ(cuda_state(usable_facts()).sentence, "Test GPU, 80.0 GiB");
}

TEST(CheckArchTest, ACardOlderThanAllKernelsIsUnsupportedAndTheListIsShown) {
  const ArchCheck check = check_arch(6, 1, parse_archs("5.0 7.0 8.0+PTX"));
  EXPECT_EQ(check.fit, ArchCheck::Fit::unsupported);
  EXPECT_THAT(check.message, HasSubstr("6.1"));
  EXPECT_THAT(check.message, HasSubstr("5.0, 7.0, 8.0, 8.0 (PTX)"));
}

TEST(CheckArchTest, KernelsRunOnTheSameMajorAndALaterMinorOnly) {
  EXPECT_EQ(check_arch(8, 6, parse_archs("8.0")).fit, ArchCheck::Fit::native);
  EXPECT_EQ(check_arch(8, 0, parse_archs("8.6")).fit, ArchCheck::Fit::unsupported);
  EXPECT_EQ(check_arch(9, 0, parse_archs("8.0")).fit, ArchCheck::Fit::unsupported);
  EXPECT_EQ(check_arch(8, 0, {}).fit, ArchCheck::Fit::unsupported);
}

TEST(CheckArchTest, PtxIsCompiledForLaterCardsWithAWarning) {
  const ArchCheck check = check_arch(9, 0, parse_archs("8.0+PTX"));
  EXPECT_EQ(check.fit, ArchCheck::Fit::just_in_time);
  EXPECT_THAT(check.message, HasSubstr("first start is slow"));
  EXPECT_EQ(check_arch(7, 5, parse_archs("8.0+PTX")).fit, ArchCheck::Fit::unsupported);
  EXPECT_EQ(check_arch(8, 6, parse_archs("8.0+PTX")).fit, ArchCheck::Fit::native);
}

TEST(CheckArchTest, ListsAreReadWithAnyUsualSeparator) {
  EXPECT_EQ(parse_archs("8.0;9.0, 12.0+PTX"),
            (std::vector<CudaArch>{{8, 0, false}, {9, 0, false}, {12, 0, false}, {12, 0, true}}));
  for (const char* wrong : {"8", "sm_80", "8.x", "-8.0", "8.0+ptx", "8.0.1"}) {
    EXPECT_THROW(parse_archs(wrong), ValueError) << wrong;
  }
}

}  // namespace
}  // namespace bellows
