#include "bellows/checkpoint/safetensors_file.h"

#include <cstring>
#include <fstream>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "tests/support/process.h"

namespace bellows::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class SafetensorsFileTest : public ::testing::Test {
 protected:
  fs::path path() const { return folder_ / "x.safetensors"; }

  // A file with this header and its length, zeros as data.
  void write_raw(const std::string& header, uint64_t data_bytes) const {
    const uint64_t length = header.size();
    std::ofstream out(path(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << header;
    out.close();
    fs::resize_file(path(), 8 + length + data_bytes);  // a hole in the file where that is large
  }
  void change(uint64_t offset_from_end, char value) const {
    std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-static_cast<std::streamoff>(offset_from_end), std::ios::end);
    file.put(value);
  }
  testing::TemporaryFolder folder_;
};

template <class ErrorType, class Fn>
std::string error_of(Fn fn) {
  try {
    fn();
  } catch (const ErrorType& error) {
    return error.what();
  }
  return "no such error";
}

TEST_F(SafetensorsFileTest, NamesShapesAndMetadataAreThereWithoutReadingTensors) {
  write_safetensors(path(), {{"a", at::ones({2, 3})}, {"b", at::arange(4)}}, {{"made", "here"}});
  const SafetensorsFile file(path());
  ASSERT_EQ(file.entries().size(), 2U);
  EXPECT_EQ(file.entries()[0].name, "b");
  EXPECT_EQ(file.entry("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.entry("a").dtype, "F32");
  EXPECT_EQ(file.metadata(), (Metadata{{"made", "here"}}));
  EXPECT_TRUE(file.contains("a"));
  EXPECT_FALSE(file.contains("c"));
  EXPECT_THAT(error_of<ValueError>([&] { file.tensor("bb"); }),
              AllOf(HasSubstr("no tensor 'bb'"), HasSubstr("did you mean 'b'")));
}

TEST_F(SafetensorsFileTest, OneTensorIsReadWithoutTheRest) {
  // A terabyte that the disk does not hold.
  const std::string terabyte = std::to_string(uint64_t{1} << 40);
  write_raw(
      R"({"small":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},"large":{"dtype":"U8","shape":[)" +
          terabyte + R"(],"data_offsets":[16,)" + std::to_string((uint64_t{1} << 40) + 16) + "]}}",
      (uint64_t{1} << 40) + 16);
  const SafetensorsFile file(path());
  EXPECT_TRUE(at::equal(file.tensor("small"), at::full({2}, 0, at::kLong)));
  const at::Tensor large = file.tensor("large", Memory::mapped);
  EXPECT_EQ(large.numel(), int64_t{1} << 40);
  EXPECT_EQ(large[large.numel() - 1].item<int64_t>(), 0);
}

TEST_F(SafetensorsFileTest, MappedTensorsAreTheValuesAndOutliveFileAndObject) {
  const at::Tensor matrix = at::rand({3, 4});
  write_safetensors(path(),
                    {{"a", matrix}, {"b", at::ones({5}, at::kBool)}, {"none", at::empty({0})}});
  NamedTensors tensors;
  {
    tensors = SafetensorsFile(path()).tensors(Memory::mapped);
    fs::remove(path());
  }
  ASSERT_EQ(tensors.size(), 3U);
  for (const auto& [name, tensor] : tensors) {
    if (name == "a") {
      EXPECT_TRUE(at::equal(tensor, matrix));
    }
    if (name == "b") {
      EXPECT_TRUE(at::equal(tensor, at::ones({5}, at::kBool)));
    }
    if (name == "none") {
      EXPECT_EQ(tensor.numel(), 0);
    }
  }
}

TEST_F(SafetensorsFileTest, WritingToAMappedTensorChangesNeitherTheFileNorAnotherMap) {
  write_safetensors(path(), {{"a", at::ones({4})}});
  const std::string before = read_file(path());
  const SafetensorsFile file(path());
  at::Tensor tensor = file.tensor("a", Memory::mapped);
  tensor.fill_(7);
  EXPECT_TRUE(at::equal(SafetensorsFile(path()).tensor("a", Memory::mapped), at::ones({4})));
  EXPECT_EQ(read_file(path()), before);
}

TEST_F(SafetensorsFileTest, MappedTensorsOfAFileThatIsWrittenAnewStayAsTheyWere) {
  write_safetensors(path(), {{"a", at::ones({4})}});
  const at::Tensor old = SafetensorsFile(path()).tensor("a", Memory::mapped);
  write_safetensors(path(), {{"a", at::full({2}, 2.0)}});
  EXPECT_TRUE(at::equal(old, at::ones({4})));
  EXPECT_TRUE(at::equal(SafetensorsFile(path()).tensor("a"), at::full({2}, 2.0)));
}

TEST_F(SafetensorsFileTest, FileThatWasCutAfterItWasOpenedIsNotMapped) {
  write_safetensors(path(), {{"a", at::ones({4000})}});
  const SafetensorsFile file(path());
  std::filesystem::resize_file(path(), 200);
  EXPECT_THROW(file.tensor("a", Memory::mapped), CorruptFileError);
  EXPECT_THROW(file.tensor("a"), CorruptFileError);
}

TEST_F(SafetensorsFileTest, TensorThatTheFileDoesNotAlignIsReadInstead) {
  std::string header = R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})";
  header.append((8 - header.size() % 8) % 8 + 3, ' ');
  write_raw(header, 16);
  const at::Tensor tensor = SafetensorsFile(path()).tensor("a", Memory::mapped);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 8, 0U);
  EXPECT_TRUE(at::equal(tensor, at::full({2}, 0.0, at::kDouble)));
}

TEST_F(SafetensorsFileTest, DamageNamesTheTensorAndLeavesTheOthersReadable) {
  write_safetensors(path(), {{"long", at::arange(3)}, {"zlast", at::ones({4})}});
  change(2, 'x');
  const SafetensorsFile file(path());
  EXPECT_TRUE(file.has_checksums());
  EXPECT_TRUE(at::equal(file.tensor("long"), at::arange(3)));
  for (const std::string& error : {error_of<CorruptFileError>([&] { file.tensor("zlast"); }),
                                   error_of<CorruptFileError>([&] { file.verify(); }),
                                   error_of<CorruptFileError>([&] { read_safetensors(path()); })}) {
    EXPECT_THAT(error,
                AllOf(HasSubstr(path().string()), HasSubstr("tensor 'zlast': its checksum")));
  }
  EXPECT_EQ(file.tensor("zlast", Memory::mapped).numel(), 4);  // not compared
}

TEST_F(SafetensorsFileTest, AnyFlippedBitIsFoundOrChangesNoTensor) {
  const at::Tensor a = at::rand({3}), b = at::arange(2);
  write_safetensors(path(), {{"a", a}, {"b", b}});
  const std::string good = read_file(path());
  int found = 0;
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    std::ofstream(path(), std::ios::binary) << bad;
    try {
      const SafetensorsFile file(path());
      EXPECT_TRUE(at::equal(file.tensor("a"), a)) << bit;
      EXPECT_TRUE(at::equal(file.tensor("b"), b)) << bit;
      EXPECT_EQ(file.entries().size(), 2U) << bit;
    } catch (const Error&) {
      ++found;
    }
  }
  EXPECT_GT(found, static_cast<int>(6 * good.size()));  // the others are in the metadata
}

TEST_F(SafetensorsFileTest, FilesWithoutChecksumsAreRead) {
  write_safetensors(path(), {{"a", at::ones({4})}}, {}, Checksums::no);
  EXPECT_EQ(read_file(path()).find("xxh3"), std::string::npos);
  const SafetensorsFile file(path());
  EXPECT_FALSE(file.has_checksums());
  file.verify();
  EXPECT_TRUE(at::equal(file.tensor("a"), at::ones({4})));
}

TEST_F(SafetensorsFileTest, ChecksumsThatBelongToOtherTensorsAreAnErrorUnlessIgnored) {
  write_raw(R"({"__metadata__":{"bellows.xxh3":"0123456789abcdef"},)"
            R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
            4);
  EXPECT_THAT(error_of<CorruptFileError>([&] { read_safetensors(path()); }),
              AllOf(HasSubstr("expected 0123456789abcdef"), HasSubstr("copied the metadata")));
  EXPECT_TRUE(at::equal(SafetensorsFile(path(), Checksums::no).tensor("a"), at::full({1}, 0.0)));
  write_raw(R"({"__metadata__":{"bellows.xxh3":"0123456789abcdeg"},)"
            R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
            4);
  EXPECT_THAT(error_of<CorruptFileError>([&] { read_safetensors(path()); }),
              HasSubstr("hexadecimal"));
  write_raw(R"({"__metadata__":{"bellows.xxh3":"01"}})", 0);
  EXPECT_THAT(error_of<CorruptFileError>([&] { read_safetensors(path()); }),
              HasSubstr("have 2 digits, expected 16 for each of 0 tensors"));
  EXPECT_THROW(write_safetensors(path(), {{"a", at::ones({1})}}, {{"bellows.xxh3", "1"}}),
               ValueError);
}

TEST_F(SafetensorsFileTest, TypeThatLibTorchLacksIsNamedAndTheOthersAreReadable) {
  write_raw(R"({"odd":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]},)"
            R"("plain":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
            5);
  const SafetensorsFile file(path());
  EXPECT_EQ(file.entry("odd").dtype, "F6_E2M3");
  EXPECT_THAT(error_of<ValueError>([&] { file.tensor("odd"); }),
              HasSubstr("tensor 'odd' has type F6_E2M3, which LibTorch lacks"));
  EXPECT_EQ(file.tensor("plain").numel(), 2);
}

TEST_F(SafetensorsFileTest, PackedPairsHaveHalfTheLastDimension) {
  const at::Tensor packed =
      at::arange(6, at::kByte).view({2, 3}).view(at::ScalarType::Float4_e2m1fn_x2);
  write_safetensors(path(), {{"a", packed}});
  const SafetensorsFile file(path());
  EXPECT_EQ(file.entry("a").shape, (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(file.tensor("a").sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(std::memcmp(file.tensor("a").const_data_ptr(), packed.const_data_ptr(), 6), 0);
}

TEST_F(SafetensorsFileTest, WhatIsNoFileIsRefusedAtOnce) {
  EXPECT_THAT(error_of<FileError>([&] { SafetensorsFile(folder_.path()); }),
              HasSubstr("Is a directory"));
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_THAT(error_of<EnvironmentError>([&] { SafetensorsFile file(path()); }),
              HasSubstr("a pipe or a device"));
  EXPECT_THAT(error_of<FileError>([&] {
                write_safetensors(path(), {{"a", at::ones({1})}});
              }),
              HasSubstr("no regular file"));
}

TEST_F(SafetensorsFileTest, FileThatIsWrittenAnewIsNeverHalfThere) {
  write_safetensors(path(), {{"a", at::ones({4})}});
  const std::string before = read_file(path());
  class Full : public FileSystem {
    ssize_t write(int, const void*, size_t) override {
      errno = ENOSPC;
      return -1;
    }
  } full;
  {
    const ScopedFileSystem scope(full);
    EXPECT_THROW(write_safetensors(path(), {{"a", at::full({4}, 2.0)}}), FileError);
  }
  EXPECT_EQ(read_file(path()), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace bellows::checkpoint
