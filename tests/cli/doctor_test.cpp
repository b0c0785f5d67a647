// `bellows doctor`, and the answer of `bellows train` to a device that cannot be used: CUDA's
// states, each reached with the shipped programs through a folder that holds a real LibTorch in
// part, or a stub driver.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/cli/bellows_program.h"

namespace bellows::testing {
namespace {
namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::map<std::string, std::string> with_stub(std::map<std::string, std::string> more = {}) {
  more["LD_LIBRARY_PATH"] = STUB_DRIVER_FOLDER;
  return more;
}

bool libtorch_has_cuda() {
  return fs::exists(fs::path(TEST_LIBTORCH) / "lib" / "libtorch_cuda.so");
}

/// The LibTorch of the build, without its CUDA libraries.
class CpuOnlyLibTorch {
 public:
  CpuOnlyLibTorch() {
    fs::create_directories(root() / "lib");
    for (const auto& entry : fs::directory_iterator(fs::path(TEST_LIBTORCH) / "lib")) {
      const std::string name = entry.path().filename().string();
      if (name.find("cuda") == std::string::npos)
        fs::create_symlink(entry.path(), root() / "lib" / name);
    }
    fs::create_directory_symlink(fs::path(TEST_LIBTORCH) / "include", root() / "include");
    const fs::path nvidia = fs::path(TEST_LIBTORCH).parent_path() / "nvidia";
    if (fs::exists(nvidia)) fs::create_directory_symlink(nvidia, folder_.path() / "nvidia");
  }
  fs::path root() const { return folder_.path() / "torch"; }

 private:
  TemporaryFolder folder_;
};

TEST(DoctorTest, TellsMachineLibTorchAndDevices) {
  const auto result = bellows({"doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  const std::string libtorch = fs::canonical(TEST_LIBTORCH).string();
  for (const std::string& words :
       std::vector<std::string>{"processor", "memory", libtorch, "C++ ABI", "CUDA", "  cpu"}) {
    EXPECT_THAT(result.out, HasSubstr(words));
  }
}

TEST(DoctorTest, ThreadsAreThoseOfTheUsableCoresAndLoaderThreadsComeOnTop) {
  const auto result = run({"taskset", "-c", "0", BELLOWS_PROGRAM, "doctor"}, with_libtorch());
  EXPECT_THAT(result.out, AllOf(HasSubstr("usable 1"), HasSubstr("LibTorch takes 1 in one rank"),
                                HasSubstr("data.workers come on top")));
}

TEST(DoctorTest, HelpAndBadArguments) {
  EXPECT_EQ(bellows({"doctor", "--help"}).exit_code, 0);
  const auto bad = bellows({"doctor", "--frob"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("--frob"));
}

TEST(DoctorTest, MissingLibTorchIsExitCode3WithThePlaces) {
  const auto result = run({BELLOWS_PROGRAM, "doctor"}, {{"LIBTORCH", "/nowhere"}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, AllOf(HasSubstr("not found"), HasSubstr("/nowhere")));
}

TEST(DoctorTest, LibTorchThatDoesNotLoadIsExitCode3) {
  TemporaryFolder folder;
  fs::create_directories(folder.path() / "lib");
  std::ofstream(folder.path() / "lib" / "libtorch_cpu.so") << "not a library";
  fs::create_symlink(fs::path(TEST_LIBTORCH) / "lib" / "libc10.so",
                     folder.path() / "lib" / "libc10.so");
  const auto result = run({BELLOWS_PROGRAM, "doctor"}, {{"LIBTORCH", folder.path().string()}});
  EXPECT_EQ(result.exit_code, 3) << result.out;
  EXPECT_THAT(result.out, HasSubstr("libtorch_cpu.so"));
}

TEST(DoctorTest, TrainingWithADamagedLibTorchIsExitCode3) {
  const CpuOnlyLibTorch good;
  for (const int64_t size : {0, 4000}) {
    TemporaryFolder folder;
    fs::create_directories(folder.path() / "lib");
    for (const char* name : {"libtorch_cpu.so", "libc10.so"}) {
      std::ifstream whole(good.root() / "lib" / name, std::ios::binary);
      std::string bytes(size, '\0');
      whole.read(bytes.data(), size);
      std::ofstream(folder.path() / "lib" / name, std::ios::binary) << bytes;
    }
    const auto result = run({BELLOWS_PROGRAM, "models"}, {{"LIBTORCH", folder.path().string()}});
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

struct StateCase {
  const char* name;
  bool cpu_only;  // LibTorch without its CUDA libraries
  std::map<std::string, std::string> stub;
  const char* state;     // in doctor's report
  bool auto_is_refused;  // `auto` never trains on the CPU beside a driver that fails
};

void PrintTo(const StateCase& value, std::ostream* out) {
  *out << value.name;
}

class CudaStateTest : public ::testing::TestWithParam<StateCase> {};

TEST_P(CudaStateTest, DoctorTrainAndAutoAgree) {
  const auto& test = GetParam();
  if (!test.cpu_only && !libtorch_has_cuda()) GTEST_SKIP() << "this LibTorch is a CPU build";
  const CpuOnlyLibTorch cpu_only;
  auto environment = with_stub(test.stub);
  if (test.cpu_only) environment["LIBTORCH"] = cpu_only.root().string();
  environment["BELLOWS_CUDA_MODULE"] = "/nowhere/libbellows_cuda.so";

  const auto doctor = bellows({"doctor"}, environment);
  EXPECT_EQ(doctor.exit_code, 0) << doctor.out << doctor.err;
  EXPECT_THAT(doctor.out, HasSubstr(test.state));

  const SmallRun run;
  const auto words = [&](const char* device) {
    return run.words({"--set", "run.epochs=1", "--set", "data.limit=16", "--device", device},
                     device);
  };
  const auto named = bellows(words("cuda"), environment);
  EXPECT_EQ(named.exit_code, 3) << named.err;
  EXPECT_THAT(named.err, HasSubstr("--device cpu"));
  EXPECT_EQ(std::count(named.err.begin(), named.err.end(), '\n'), 1) << named.err;

  const auto automatic = bellows(words("auto"), environment);
  EXPECT_EQ(automatic.exit_code, test.auto_is_refused ? 3 : 0) << automatic.err;
  if (!test.auto_is_refused) {
    EXPECT_THAT(automatic.out, HasSubstr("device cpu ("));
  }

  EXPECT_EQ(bellows(words("cpu"), environment).exit_code, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Reached, CudaStateTest,
    ::testing::Values(
        StateCase{"CpuBuildBesideAGpu", true, {}, "cpu_build", false},
        StateCase{"ModuleNotThere", false, {}, "not_loaded", false},
        StateCase{"DriverTooOld", false, {{"STUB_CUDA_VERSION", "11040"}}, "driver_too_old", true},
        StateCase{"DriverBroken", false, {{"STUB_CUDA_INIT", "999"}}, "driver_broken", true},
        StateCase{"NoDevice", false, {{"STUB_CUDA_DEVICES", "0"}}, "no_device", false},
        StateCase{"AllDevicesHidden", false, {{"CUDA_VISIBLE_DEVICES", ""}}, "no_device", false}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(DoctorTest, DriverMissing) {
  if (testing::run({"sh", "-c", "ldconfig -p | grep -q libcuda.so.1"}).exit_code == 0) {
    GTEST_SKIP() << "this machine has a driver";
  }
  if (!libtorch_has_cuda()) GTEST_SKIP() << "this LibTorch is a CPU build";
  EXPECT_THAT(bellows({"doctor"}).out, HasSubstr("driver_missing"));
}

}  // namespace
}  // namespace bellows::testing
