#include "bellows/core/elf.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <random>
#include <unistd.h>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/core/file.h"

namespace bellows {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;

const fs::path kLibrary = fs::path(FAKE_LIBTORCH) / "cuda_build/lib/libtorch_cuda.so";

class ElfTest : public testing::Test {
 protected:
  fs::path write(const std::string& bytes) {
    write_file_atomically(path_, bytes);
    return path_;
  }
  // Reads all there is; whatever the bytes, an answer or one of our errors.
  static bool read_all(const fs::path& path) {
    try {
      const ElfFile file(path);
      file.needed();
      file.dynamic_strings();
      const auto range = file.section(".dynstr");
      file.bytes(range.offset, range.size);
      return true;
    } catch (const CorruptFileError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
      return false;
    }
  }
  void TearDown() override { fs::remove(path_); }

  fs::path path_ = fs::temp_directory_path() / ("bellows_elf_" + std::to_string(::getpid()));
};

TEST_F(ElfTest, NeededLibrariesAreListed) {
  const auto needed = ElfFile(kLibrary).needed();
  EXPECT_THAT(needed, Contains("libcudart-1b2c3d4e.so.12"));
  EXPECT_THAT(needed, Contains("libnowhere.so"));
  EXPECT_THAT(needed, Contains("libc.so.6"));
}

TEST_F(ElfTest, SymbolNamesAreFound) {
  const ElfFile c10(fs::path(FAKE_LIBTORCH) / "cpu_build/lib/libc10.so");
  EXPECT_THAT(c10.dynamic_strings(), HasSubstr("_ZN3c105ErrorC1ENS_14SourceLocationESs"));
}

TEST_F(ElfTest, SectionsAreFoundByName) {
  const ElfFile file(kLibrary);
  const auto range = file.section(".dynstr");
  EXPECT_EQ(file.bytes(range.offset, range.size), file.dynamic_strings());
  EXPECT_EQ(file.section(".no_such_section").size, 0U);
}

TEST_F(ElfTest, AMissingFileIsAFileError) {
  EXPECT_THROW(ElfFile("/no/such/library.so"), FileError);
}

TEST_F(ElfTest, OtherFilesAreNamedAsSuch) {
  for (const std::string& bytes :
       {std::string(), std::string("no library"), std::string(1000, 'x')}) {
    try {
      ElfFile file(write(bytes));
      FAIL();
    } catch (const CorruptFileError& error) {
      EXPECT_THAT(error.what(), HasSubstr("is not an ELF file"));
    }
  }
  EXPECT_THROW(ElfFile(fs::temp_directory_path()), CorruptFileError);
}

TEST_F(ElfTest, AFileCutShortAnywhereIsRefusedOrAnswered) {
  const std::string whole = read_file(kLibrary);
  int refused = 0;
  for (size_t size = 1; size < whole.size(); size += 97)
    refused += !read_all(write(whole.substr(0, size)));
  EXPECT_GT(refused, 50);
}

TEST_F(ElfTest, DamagedBytesAreRefusedOrAnswered) {
  const std::string whole = read_file(kLibrary);
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 500; ++round) {
    std::string bytes = whole;
    // The headers, where offsets and counts stand.
    for (int i = 0; i < 4; ++i) bytes[4 + random() % 700] = static_cast<char>(random());
    refused += !read_all(write(bytes));
  }
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace bellows
