// Directories of zip archives: what is in them, and hostile ones.
#include "bellows/formats/zip_directory.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/formats/files.h"

namespace bellows::formats::test {
namespace {

using ::testing::HasSubstr;

std::string fault_of(const std::string& bytes) {
  return error_of(bytes, [](const InputBytes& file) { read_zip_directory(file); });
}

TEST(ZipDirectory, TellsWhereEntriesLie) {
  const std::string bytes = zip_of({{"a/data.pkl", "first"}, {"a/data/0", "second!"}, {"a/", ""}});
  const InputMemory file(std::as_bytes(std::span(bytes)), "file");
  const ZipDirectory directory = read_zip_directory(file);
  ASSERT_EQ(directory.size(), 2U) << "folders are no entries";
  const ZipEntry& entry = directory.at("a/data/0");
  EXPECT_EQ(file.text(entry.offset, entry.bytes), "second!");
}

TEST(ZipDirectory, AnArchiveWithACommentIsRead) {
  std::string bytes = zip_of({{"a", "1"}});
  bytes[bytes.size() - 2] = 3;
  EXPECT_EQ(fault_of(bytes + "abc"), "no error");
}

TEST(ZipDirectory, EveryCutIsRefused) {
  const std::string bytes = zip_of({{"a/data.pkl", "first"}, {"a/data/0", "second!"}});
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THAT(fault_of(bytes.substr(0, length)), HasSubstr("file: ")) << length;
  }
}

TEST(ZipDirectory, NamesTwiceOverlapsAndStrayHeadersAreRefused) {
  EXPECT_THAT(fault_of(zip_of({{"a", "1"}, {"a", "2"}})), HasSubstr("two entries are named 'a'"));
  EXPECT_THAT(fault_of(zip_of({{"a", "1"}, {"a", "2", 0, 0, 0}})),
              HasSubstr("two entries are named 'a'"));
  EXPECT_THAT(fault_of(zip_of({{"a", "1"}, {"b", "2", 0, 0, 0}})), HasSubstr("another name"));
  EXPECT_THAT(fault_of(zip_of({{"a", "1"}, {"b", "2", 0, 0, 7}})), HasSubstr("has no header"));
  EXPECT_THAT(fault_of(zip_of({{"a", "1", 0, 0, 0x7fffffff}})), HasSubstr("file: "));
  // An entry that lies within another one.
  const std::string inner = zip_of({{"b", "2"}}).substr(0, 32);
  EXPECT_THAT(fault_of(zip_of({{"a", inner}, {"b", "2", 0, 0, 31}})), HasSubstr("overlaps"));
}

TEST(ZipDirectory, EncryptedAndUnusuallyCompressedEntriesAreRefusedByName) {
  EXPECT_THAT(fault_of(zip_of({{"a", "1", 0, 1}})), HasSubstr("'a' is encrypted"));
  EXPECT_THAT(fault_of(zip_of({{"a", "1", 12}})), HasSubstr("'a' is compressed in an unusual way"));
  const std::string bytes = zip_of({{"a", "\xff", 8}});
  const InputMemory file(std::as_bytes(std::span(bytes)), "file");
  const ZipDirectory directory = read_zip_directory(file);
  EXPECT_THROW(stored_entry(file, "a", directory.at("a")), ValueError);
  EXPECT_THROW(first_bytes(file, directory.at("a"), 100), CorruptFileError);
}

TEST(ZipDirectory, MoreEntriesThanItsBytesCanHoldAreRefusedAtOnce) {
  std::string bytes = zip_of({{"a", "1"}});
  bytes.replace(bytes.size() - 12, 2, "\xff\xff");
  EXPECT_THAT(fault_of(bytes), HasSubstr("its directory of 65535 entries"));
}

TEST(ZipDirectory, SixtyFourBitSizesThatDoNotFitAreRefused) {
  const std::string whole = zip_of({{"a", "1"}});
  const std::string start = whole.substr(0, whole.size() - 22),
                    end = whole.substr(whole.size() - 22);
  const auto with_end64 = [&](uint64_t size, uint64_t offset) {
    const std::string end64 = "PK\6\6" + little_endian(44, 8) + little_endian(0, 12) +
                              little_endian(1, 8) + little_endian(1, 8) + little_endian(size, 8) +
                              little_endian(offset, 8);
    return start + end64 + "PK\6\7" + little_endian(0, 4) + little_endian(start.size(), 8) +
           little_endian(1, 4) + end;
  };
  EXPECT_EQ(fault_of(with_end64(start.size() - 32, 32)), "no error");
  EXPECT_THAT(fault_of(with_end64(uint64_t{1} << 63, 32)), HasSubstr("does not fit"));
  EXPECT_THAT(fault_of(with_end64(47, ~uint64_t{0})), HasSubstr("does not fit"));
}

}  // namespace
}  // namespace bellows::formats::test
