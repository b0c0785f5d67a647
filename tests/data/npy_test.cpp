#include "bellows/data/npy.h"

#include <gmock/gmock.h>
#include <string>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/data/damage.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;
using test::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using namespace std::string_literals;

std::string npy(const std::string& header, const std::string& data, char version = 1) {
  std::string padded = header;
  const size_t prefix = version == 1 ? 10 : 12;
  while ((prefix + padded.size() + 1) % 64 != 0) padded += ' ';
  padded += '\n';
  std::string bytes = "\x93NUMPY"s + version + '\0';
  bytes += static_cast<char>(padded.size() & 0xff);
  bytes += static_cast<char>(padded.size() >> 8);
  if (version > 1) bytes += "\0\0"s;
  return bytes + padded + data;
}

std::string header(const std::string& type, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + type + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }";
}

class NpyTest : public ::testing::Test {
 protected:
  at::Tensor read(const std::string& bytes, NpyOptions options = {}) const {
    return read_npy(folder_.write("file", bytes), options);
  }
  std::string refused(const std::string& bytes) const {
    const auto path = folder_.write("file", bytes);
    const std::string message = message_of<CorruptFileError>([&] { read_npy(path); });
    EXPECT_THAT(message, StartsWith(path.string() + ": "));
    return message.substr(std::min(message.size(), path.string().size() + 2));
  }
  TemporaryFolder folder_;
};

// All types and orders are compared with NumPy's in tests/python/data_files.py.
TEST_F(NpyTest, OrdersOfBytesAndOfElements) {
  const at::Tensor expected = at::arange(1, 7, at::kShort).view({2, 3});
  const std::string little = "\1\0\2\0\3\0\4\0\5\0\6\0"s;
  EXPECT_TRUE(at::equal(read(npy(header("<i2", "(2, 3)"), little)), expected));
  EXPECT_TRUE(at::equal(read(npy(header("<i2", "(2, 3)"), little, 2)), expected));
  EXPECT_TRUE(at::equal(read(npy(header("<i2", "(3, 2)", true), little)), expected.t()));
  EXPECT_TRUE(at::equal(read(npy(header(">i2", "(2, 3)"), "\0\1\0\2\0\3\0\4\0\5\0\6"s)), expected));
  EXPECT_EQ(read(npy(header("<f4", "()"), "\0\0\x80\x3f"s)).item<float>(), 1);
  EXPECT_EQ(read(npy(header("<f4", "(0, 3)"), "")).sizes(), (at::IntArrayRef{0, 3}));
  EXPECT_EQ(read(npy(header("|u1", "(3,)"), "abc")).sizes(), (at::IntArrayRef{3}));
}

TEST_F(NpyTest, MappedTensorsHaveTheSameValuesAndOutliveTheName) {
  const std::string bytes = npy(header("<i4", "(2,)"), "\1\0\0\0\2\0\0\0"s);
  const at::Tensor mapped = read(bytes, {.map = true});
  std::filesystem::remove(folder_.path() / "file");
  EXPECT_TRUE(at::equal(mapped, at::tensor({1, 2}, at::kInt)));
  EXPECT_THAT(
      message_of<ValueError>([&] { read(npy(header(">i4", "(1,)"), "\1\0\0\0"s), {.map = true}); }),
      HasSubstr("cannot be mapped"));
}

TEST_F(NpyTest, DamageSaysWhatWasFoundAndExpected) {
  EXPECT_EQ(refused("PK\3\4 something"),
            "got 14 bytes that do not begin with \\x93NUMPY and a version: not a .npy file");
  EXPECT_EQ(refused(npy(header("<i4", "(1,)"), "abcd", 7)), "got version 7.0, expected 1 to 3");
  EXPECT_EQ(refused(npy(header("<i4", "(1,)"), "").substr(0, 50)),
            "got 50 bytes, expected a header of 128: cut off");
  EXPECT_EQ(refused(npy(header("<i4", "(3,)"), "12345678")),
            "got 8 bytes of data, expected 12: cut off");
  EXPECT_EQ(refused(npy(header("<i4", "(1,)"), "12345678")),
            "got 8 bytes of data, expected 4: excess bytes");
  EXPECT_THAT(refused(npy(header("|O", "(1,)"), "abcd")), HasSubstr("not '|O'"));
  EXPECT_THAT(refused(npy(header("<f3", "(1,)"), "abc")), HasSubstr("not '<f3'"));
  EXPECT_THAT(refused(npy("{'descr': '<i4', 'shape': (1,)}", "abcd")),
              HasSubstr("expected all of the keys descr, fortran_order and shape"));
  EXPECT_THAT(refused(npy("{'descr': '<i4', 'descr': '<i4'}", "")), HasSubstr("again"));
  EXPECT_THAT(refused(npy("{'x': '<i4'}", "")), HasSubstr("not x"));
  EXPECT_THAT(refused(npy(header("<i4", "(-1,)"), "")), HasSubstr("expected a size from 0"));
  EXPECT_THAT(refused(npy(header("<i4", "(4611686018427387904, 4)"), "")),
              HasSubstr("2^63 bytes or more"));
  EXPECT_THAT(refused(npy(header("<i4", "(0, 4611686018427387904, 4)"), "")),
              HasSubstr("2^63 bytes or more"));
  EXPECT_EQ(refused(npy(header("|b1", "(2,)"), "\1\2")),
            "got a bool of 2 at place 1, expected 0 or 1");
}

TEST_F(NpyTest, DamagedFilesAreReadOrRefused) {
  for (const bool fortran : {false, true}) {
    const auto counts =
        test::read_damaged(npy(header("<i2", "(2, 3)", fortran), "123456789012"), 70, 500,
                           [](const std::filesystem::path& path) { read_npy(path).sum(); });
    EXPECT_GT(counts.read, 40);
    EXPECT_GT(counts.refused, 250);
  }
}

}  // namespace
}  // namespace bellows::data
