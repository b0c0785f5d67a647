// init() and cuda_report() in programs of their own, with a stub driver and without one.
#include "bellows/device/init.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <unistd.h>

#include "bellows/core/cuda_driver.h"
#include "bellows/core/libtorch_info.h"
#include "tests/device/child.h"

namespace bellows {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(InitTest, HasRunBeforeEveryTest) {
  EXPECT_TRUE(initialized());
}

TEST(InitTest, TheRunningLibTorchIsFoundAndInspected) {
  const auto path = loaded_library("libtorch_cpu.so");
  ASSERT_TRUE(path.has_value());
  const LibTorchInfo info = inspect_libtorch(path->parent_path());
  EXPECT_NE(info.abi, CxxAbi::unknown);
  EXPECT_THAT(info.version, testing::StartsWith("2."));
  EXPECT_EQ(info.has_cuda, TEST_LIBTORCH_HAS_CUDA != 0);
  if (info.has_cuda) {
    EXPECT_GE(info.cuda_major, 11);
    EXPECT_FALSE(info.cuda_archs.empty());
  }
}

TEST(InitTest, WithoutADriverNothingIsLoadedAndTheCpuIsTaken) {
  if (cuda_driver_present()) GTEST_SKIP() << "this machine has an NVIDIA driver";
  const std::string out = probe("BELLOWS_LOG=warn", "init module auto cuda");
  EXPECT_THAT(out, HasSubstr("module = none"));
  EXPECT_THAT(out, HasSubstr("auto = cpu ("));
  EXPECT_THAT(out, HasSubstr("cuda ! environment error: cuda:0 cannot be used: "));
  EXPECT_THAT(out, HasSubstr("--device cpu"));
  EXPECT_THAT(out, Not(HasSubstr("warn")));
}

#if TEST_LIBTORCH_HAS_CUDA

TEST(InitTest, ATooOldDriverStopsAutoAndNamesBothVersions) {
  const std::string out = probe_with_stub("STUB_CUDA_VERSION=11040", "init report auto cpu");
  EXPECT_THAT(out, HasSubstr("report = driver_too_old"));
  EXPECT_THAT(out, HasSubstr("auto ! environment error: "));
  EXPECT_THAT(out, AllOf(HasSubstr("up to 11.4"), HasSubstr("--device cpu")));
  EXPECT_THAT(out, HasSubstr("cpu = cpu (asked for)"));
}

TEST(InitTest, ABrokenDriverStopsAuto) {
  const std::string out = probe_with_stub("STUB_CUDA_INIT=803", "init auto");
  EXPECT_THAT(out, HasSubstr("auto ! environment error: "));
  EXPECT_THAT(out, HasSubstr("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"));
}

TEST(InitTest, HiddenDevicesGiveTheCpuWithTheReason) {
  const std::string out = probe_with_stub("CUDA_VISIBLE_DEVICES=", "init auto list");
  EXPECT_THAT(out, HasSubstr("auto = cpu (no CUDA device: CUDA_VISIBLE_DEVICES is '')"));
  EXPECT_THAT(out, HasSubstr("list = 1"));
  EXPECT_THAT(probe_with_stub("STUB_CUDA_DEVICES=0", "init auto"),
              HasSubstr("auto = cpu (the NVIDIA driver finds no device)"));
}

TEST(InitTest, WithoutTheModuleAutoTakesTheCpuAndWarns) {
  const std::string out =
      probe_with_stub("BELLOWS_CUDA_MODULE=/no/such/module.so", "init report auto cuda");
  EXPECT_THAT(out, HasSubstr("report = not_loaded: Bellows was built without its CUDA module"));
  EXPECT_THAT(out, HasSubstr("auto = cpu (Bellows was built without"));
  EXPECT_THAT(out, HasSubstr("running on the CPU: Bellows was built without"));
  EXPECT_THAT(out, HasSubstr("cuda ! environment error: "));
}

TEST(InitTest, AModuleThatDoesNotOpenIsNamed) {
  const fs::path broken =
      fs::temp_directory_path() / ("bellows_module_" + std::to_string(::getpid()) + ".so");
  FILE* file = std::fopen(broken.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fputs("no library", file);
  std::fclose(file);
  const std::string out = probe_with_stub("BELLOWS_CUDA_MODULE=" + broken.string(), "init report");
  fs::remove(broken);
  EXPECT_THAT(out, HasSubstr("report = not_loaded"));
  EXPECT_THAT(out, AllOf(HasSubstr("could not be loaded"), HasSubstr(".so")));
}

TEST(InitTest, ALibTorchWithoutItsCudaLibraryIsCalledACpuBuildThoughADriverIsThere) {
  // The same libraries, seen in a folder that has no libtorch_cuda.
  const fs::path lib = loaded_library("libtorch_cpu.so")->parent_path();
  const fs::path fake =
      fs::temp_directory_path() / ("bellows_cpu_build_" + std::to_string(::getpid()));
  fs::create_directories(fake);
  for (const char* name : {"libtorch_cpu.so", "libc10.so"})
    fs::create_symlink(lib / name, fake / name);
  std::string path = fake.string() + ":" + lib.string();
  std::error_code error;
  for (const auto& package : fs::directory_iterator(lib / "../../nvidia", error))
    path += ":" + (package.path() / "lib").string();
  const std::string out = probe("LD_LIBRARY_PATH=" + kStubDriver + ":" + path, "init cuda auto");
  fs::remove_all(fake);
  EXPECT_THAT(
      out,
      HasSubstr("cuda ! environment error: cuda:0 cannot be used: this LibTorch is a CPU build"));
  EXPECT_THAT(out, AllOf(HasSubstr("pip install torch"), HasSubstr("--device cpu")));
  EXPECT_THAT(out, HasSubstr("auto = cpu (this LibTorch is a CPU build"));
  EXPECT_THAT(out, HasSubstr("running on the CPU: this LibTorch is a CPU build")) << "no warning";
}

#endif

#if TEST_CUDA_MODULE

TEST(InitTest, TheModuleLoadsAndTellsItsArchitectures) {
  EXPECT_THAT(probe("", "load module ask"),
              AllOf(HasSubstr("load = done"), HasSubstr("+PTX"), HasSubstr("ask = 1")));
}

TEST(InitTest, WithTheModuleButWithoutADriverLibTorchSaysSo) {
  if (cuda_driver_present()) GTEST_SKIP() << "this machine has an NVIDIA driver";
  EXPECT_THAT(probe("", "load lazy_init"),
              HasSubstr("lazy_init ! LibTorch: Found no NVIDIA driver on your system"));
}

TEST(InitTest, TooLateIsAnErrorThatSaysSo) {
  for (const char* first : {"ask", "backward"}) {
    const std::string out = probe_with_stub("", std::string(first) + " init report");
    EXPECT_THAT(out, HasSubstr("init ! environment error: bellows::init() came too late"));
    EXPECT_THAT(out, HasSubstr("report = not_loaded: CUDA was loaded too late"));
  }
}

TEST(InitTest, ADriverThatOnlyPretendsIsNotCalledUsable) {
  const std::string out = probe_with_stub("", "init report auto");
  EXPECT_THAT(
      out,
      HasSubstr("driver_broken: the NVIDIA driver lists 1 device(s), but LibTorch finds none"));
  EXPECT_THAT(out, HasSubstr("auto ! environment error"));
}

#endif

}  // namespace
}  // namespace bellows
