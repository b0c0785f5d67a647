#include "bellows/core/libtorch_info.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/core/file.h"

namespace bellows {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const fs::path kFakes = FAKE_LIBTORCH;

class LibTorchInfoTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_ / "lib"); }
  void TearDown() override { fs::remove_all(folder_); }
  // A CPU build whose libraries are those of `name`.
  void copy_libraries(const std::string& name) {
    for (const auto& file : fs::directory_iterator(kFakes / name / "lib")) {
      fs::copy(file.path(), folder_ / "lib" / file.path().filename());
    }
  }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    write_file_atomically(folder_ / name, text);
  }

  fs::path folder_ = fs::temp_directory_path() / ("bellows_libtorch_" + std::to_string(::getpid()));
};

TEST_F(LibTorchInfoTest, ACpuBuildWithTheOldAbiIsRecognised) {
  const LibTorchInfo info = inspect_libtorch(kFakes / "cpu_build");
  EXPECT_TRUE(info.has_cpu);
  EXPECT_TRUE(info.has_c10);
  EXPECT_FALSE(info.has_cuda);
  EXPECT_EQ(info.abi, CxxAbi::old);
  EXPECT_EQ(info.cuda_major, 0);
  EXPECT_EQ(cuda_state(cuda_facts(info, {})).state, CudaState::cpu_build);
}

TEST_F(LibTorchInfoTest, ACudaBuildTellsAbiCudaVersionAndWhatIsMissing) {
  const LibTorchInfo info = inspect_libtorch(kFakes / "cuda_build");
  EXPECT_TRUE(info.has_cuda);
  EXPECT_EQ(info.abi, CxxAbi::cxx11);
  EXPECT_EQ(info.cuda_major, 12);
  EXPECT_THAT(info.missing, ElementsAre("libnowhere.so"));
  EXPECT_TRUE(info.damaged.empty());
}

TEST_F(LibTorchInfoTest, MissingLibrariesMakeItNotLoadable) {
  CudaDriver driver;
  driver.library = true;
  driver.init = 0;
  driver.version = 13000;
  driver.devices = {{"Test GPU", 1, 9, 0}};
  LibTorchInfo info = inspect_libtorch(kFakes / "cuda_build");
  info.bellows_cuda = "libbellows_cuda.so";
  const CudaReport report = cuda_state(cuda_facts(info, driver));
  EXPECT_EQ(report.state, CudaState::not_loaded);
  EXPECT_THAT(report.sentence, HasSubstr("libnowhere.so"));
  info.missing.clear();
  EXPECT_EQ(cuda_state(cuda_facts(info, driver)).state, CudaState::usable);
}

TEST_F(LibTorchInfoTest, TheLibFolderItselfWillDo) {
  EXPECT_EQ(inspect_libtorch(kFakes / "cpu_build/lib").abi, CxxAbi::old);
}

TEST_F(LibTorchInfoTest, AFolderWithoutLibTorchSaysWhatWasExpected) {
  try {
    inspect_libtorch(folder_);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), HasSubstr(folder_.string()));
    EXPECT_THAT(error.what(), HasSubstr("expected lib/libtorch_cpu.so"));
    EXPECT_THAT(error.what(), HasSubstr("LIBTORCH"));
  }
}

TEST_F(LibTorchInfoTest, TheVersionComesFromTheMostTellingFile) {
  copy_libraries("cpu_build");
  EXPECT_EQ(inspect_libtorch(folder_).version, "");
  write("include/torch/headeronly/version.h",
        "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 14\n#define "
        "TORCH_VERSION_PATCH 1\n");
  EXPECT_EQ(inspect_libtorch(folder_).version, "2.14.1");
  write("version.py", "__all__ = ['__version__']\n__version__ = '2.14.1+cu130'\n");
  EXPECT_EQ(inspect_libtorch(folder_).version, "2.14.1+cu130");
  write("build-version", "2.14.1+cpu\n");
  EXPECT_EQ(inspect_libtorch(folder_).version, "2.14.1+cpu");
}

TEST_F(LibTorchInfoTest, ADamagedLibraryIsReportedNotThrown) {
  copy_libraries("cuda_build");
  write("lib/libtorch_cuda.so",
        "\x7f"
        "ELF and then nothing");
  const LibTorchInfo info = inspect_libtorch(folder_);
  ASSERT_EQ(info.damaged.size(), 1U);
  EXPECT_THAT(info.damaged[0], HasSubstr("libtorch_cuda.so"));
  EXPECT_EQ(info.abi, CxxAbi::cxx11);
}

TEST_F(LibTorchInfoTest, TheModuleIsLookedForWhereToldOrBesideLibTorch) {
  copy_libraries("cpu_build");
  write("lib/libbellows_cuda.so", "");
  EXPECT_EQ(inspect_libtorch(folder_, "/no/such/folder").bellows_cuda, "");
  EXPECT_EQ(inspect_libtorch(folder_, folder_ / "lib").bellows_cuda,
            folder_ / "lib/libbellows_cuda.so");
}

TEST_F(LibTorchInfoTest, LoadedLibrariesAreFoundByFileName) {
  const auto path = loaded_library("libc.so.6");
  ASSERT_TRUE(path.has_value());
  EXPECT_TRUE(path->is_absolute());
  EXPECT_FALSE(loaded_library("libno_such_library.so").has_value());
}

}  // namespace
}  // namespace bellows
