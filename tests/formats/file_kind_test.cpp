// What a file is: by its content, whatever its name says.
#include "bellows/formats/file_kind.h"

#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/formats/files.h"

namespace bellows::formats::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::string_literals;

class FileKindTest : public ::testing::Test {
 protected:
  FileKindTest() : path_(::testing::TempDir() + "file_kind_test.pt") {}
  ~FileKindTest() override { fs::remove(path_); }
  FileKind kind(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return kind_of(path_);
  }
  fs::path path_;
};

TEST_F(FileKindTest, FilesOfPythonAreToldApart) {
  const fs::path corpus = fs::path(CORPUS) / "torch";
  EXPECT_EQ(kind_of(corpus / "state.pt"), FileKind::torch_save);
  EXPECT_EQ(kind_of(corpus / "legacy.pt"), FileKind::torch_save_legacy);
  EXPECT_EQ(kind_of(corpus / "module.pt"), FileKind::torch_module);
  EXPECT_EQ(kind_of(corpus / "script.pt"), FileKind::torchscript);
  EXPECT_EQ(kind_of(corpus / "libtorch.pt"), FileKind::libtorch_archive);
  EXPECT_EQ(kind_of(corpus / "libtorch_optimizer.pt"), FileKind::libtorch_optimizer);
  EXPECT_EQ(kind_of(fs::path(CORPUS) / "safetensors" / "all"), FileKind::safetensors);
  EXPECT_EQ(kind_of(fs::path(CORPUS) / "pickle" / "plain2"), FileKind::pickle);
}

TEST_F(FileKindTest, OtherFilesAreNamed) {
  EXPECT_EQ(kind(""), FileKind::empty);
  EXPECT_EQ(kind("\x93NUMPY\1"), FileKind::numpy);
  EXPECT_EQ(kind(zip_of({{"w.npy", "x"}})), FileKind::numpy);
  EXPECT_EQ(kind(zip_of({{"readme", "x"}})), FileKind::zip);
  EXPECT_EQ(kind(zip_of({{"m/archive_format", "pt2"}})), FileKind::exported_program);
  EXPECT_EQ(kind("GGUF\3"), FileKind::gguf);
  EXPECT_EQ(kind("\x89HDF\r\n\x1a\n"), FileKind::hdf5);
  EXPECT_EQ(kind("\x1f\x8b\x08"), FileKind::compressed);
  EXPECT_EQ(kind("\x08\x07\x12\x07pytorch"), FileKind::onnx);
  EXPECT_EQ(kind("version https://git-lfs.github.com/spec/v1\n"), FileKind::git_lfs_pointer);
  EXPECT_EQ(kind("<html>404</html>"), FileKind::text);
  EXPECT_EQ(kind("\0\1\2\3"s), FileKind::unknown);
  EXPECT_EQ(kind(std::string(257, 'n') + "ustar" + std::string(250, 'n')), FileKind::tar);
  EXPECT_EQ(kind_of(::testing::TempDir()), FileKind::directory);
  EXPECT_THROW(kind_of(path_ / "absent"), FileError);
  EXPECT_THROW(kind_of("/dev/null"), EnvironmentError);
}

TEST_F(FileKindTest, ADamagedArchiveIsOfTheKindThatItBeginsAs) {
  const std::string whole = zip_of({{"archive/data.pkl", "N."}, {"archive/version", "3"}});
  EXPECT_EQ(kind(whole.substr(0, whole.size() / 2)), FileKind::torch_save);
}

TEST_F(FileKindTest, AWrongKindIsRefusedWithItsNameAndTheRightCall) {
  try {
    refuse_kind("x.pt", FileKind::torchscript, "a safetensors file");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("x.pt: is a TorchScript archive"),
                      HasSubstr("expected a safetensors file"), HasSubstr("nn::load_torchscript")));
  }
  static_cast<void>(kind("\x93NUMPY\1"));
  EXPECT_THROW(refuse_other_kind(path_, FileKind::safetensors, "…"), ValueError);
  EXPECT_NO_THROW(refuse_other_kind(path_, FileKind::numpy, "…"));
  static_cast<void>(kind("\0\1"s));
  EXPECT_NO_THROW(refuse_other_kind(path_, FileKind::safetensors, "…"));
}

}  // namespace
}  // namespace bellows::formats::test
