#include "bellows/checkpoint/safetensors.h"

#include <cstring>
#include <fstream>
#include <gmock/gmock.h>
#include <random>
#include <unistd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/checkpoint/safetensors_header.h"
#include "bellows/checkpoint/safetensors_io.h"
#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest() {
    std::string pattern = ::testing::TempDir() + "safetensors-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~SafetensorsTest() override { fs::remove_all(folder_); }

  fs::path path() const { return folder_ / "x.safetensors"; }

  // A file with this header, its right length and `data_bytes` zeros.
  void write_raw(const std::string& header, size_t data_bytes) const {
    const uint64_t length = header.size();
    std::ofstream out(path(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << header << std::string(data_bytes, '\0');
  }

  std::string refusal() const {
    try {
      read_safetensors(path());
    } catch (const CorruptFileError& error) {
      EXPECT_EQ(error.path(), path());
      return error.what();
    }
    return "accepted";
  }

  std::string refusal_of(const std::string& header, size_t data_bytes = 4) const {
    write_raw(header, data_bytes);
    return refusal();
  }

  fs::path folder_;
};

std::string entry(const std::string& name, const std::string& shape = "[1]",
                  const std::string& offsets = "[0,4]") {
  return "\"" + name + R"(":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}";
}

TEST_F(SafetensorsTest, TensorsComeBackWithNamesTypesShapesAndBits) {
  const at::Tensor matrix = at::rand({3, 4});
  const NamedTensors written = {{"weight", matrix},
                                {"transposed", matrix.t()},
                                {"half", matrix.to(at::kHalf)},
                                {"bfloat", matrix.to(at::kBFloat16)},
                                {"double", matrix.to(at::kDouble)},
                                {"flag", matrix.gt(0.5)},
                                {"scalar", at::arange(7, 8).squeeze()},
                                {"empty", at::empty({0, 5})}};
  write_safetensors(path(), written, {{"a", "1"}, {"b", "é"}});
  Metadata metadata;
  const NamedTensors read = read_safetensors(path(), &metadata);
  EXPECT_EQ(metadata, (Metadata{{"a", "1"}, {"b", "é"}}));
  ASSERT_EQ(read.size(), written.size());
  for (const auto& [name, tensor] : written) {
    const auto found = std::ranges::find(read, name, &NamedTensors::value_type::first);
    ASSERT_NE(found, read.end()) << name;
    EXPECT_EQ(found->second.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(found->second.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(at::equal(found->second, tensor)) << name;
  }
}

TEST_F(SafetensorsTest, BytesDependOnContentsNotOnOrderOrStrides) {
  const at::Tensor a = at::rand({4, 4});
  const at::Tensor b = at::arange(3);
  write_safetensors(path(), {{"a", a}, {"b", b}});
  const std::string first = read_file(path());
  write_safetensors(path(), {{"b", b}, {"a", a.t().contiguous().t()}});
  EXPECT_EQ(read_file(path()), first);
  uint64_t length = 0;
  std::memcpy(&length, first.data(), 8);
  EXPECT_EQ(length % 8, 0U);
}

TEST_F(SafetensorsTest, LargeAlignmentComesFirstThenName) {
  write_safetensors(path(), {{"z", at::ones({1})},
                             {"a", at::ones({1})},
                             {"byte", at::ones({1}, at::kByte)},
                             {"long", at::ones({1}, at::kLong)}});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : read_safetensors(path())) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("long", "a", "z", "byte"));
}

TEST_F(SafetensorsTest, ReadTensorsOwnTheirMemory) {
  write_safetensors(path(), {{"a", at::ones({2})}, {"b", at::ones({2})}});
  NamedTensors read = read_safetensors(path());
  fs::remove(path());
  read[0].second.fill_(5);
  EXPECT_TRUE(at::equal(read[1].second, at::ones({2})));
}

// Blocks are read and hashed by several threads; tensors begin and end anywhere in them.
TEST_F(SafetensorsTest, FilesOfManyBlocksComeBackAndAreChecked) {
  NamedTensors written;
  for (const int64_t size : {1'300'001, 7, 3, 2'100'000, 1, 999'999}) {
    written.emplace_back("t" + std::to_string(size), at::rand({size}));
  }
  const Digest digest = write_safetensors_hashed(path(), written);
  EXPECT_GT(digest.bytes, 4 * kBlockBytes);
  for (const NamedTensors& read :
       {read_safetensors(path()), read_safetensors_hashed(path(), digest)}) {
    ASSERT_EQ(read.size(), written.size());
    for (const auto& [name, tensor] : written) {
      const auto found = std::ranges::find(read, name, &NamedTensors::value_type::first);
      EXPECT_TRUE(at::equal(found->second, tensor)) << name;
    }
  }
  std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(9'000'000);
  file.put('x').put('y');
  file.close();
  try {
    read_safetensors_hashed(path(), digest);
    FAIL();
  } catch (const CorruptFileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("its checksum is"));
  }
}

TEST_F(SafetensorsTest, WriterRefusesBeforeTouchingTheFile) {
  write_safetensors(path(), {{"a", at::ones({2})}});
  const std::string before = read_file(path());
  const at::Tensor one = at::ones({1});
  const std::vector<std::pair<NamedTensors, std::string>> cases = {
      {{{"a", one}, {"a", one}}, "two tensors named 'a'"},
      {{{"__metadata__", one}}, "'__metadata__'"},
      {{{"gone", at::Tensor()}}, "'gone' is undefined"},
      {{{"sparse", at::ones({2, 2}).to_sparse()}}, "'sparse' is Sparse"},
      {{{"complex", at::ones({1}, at::kComplexDouble)}}, "'complex' has type ComplexDouble"},
      {{{"bad\xff", one}}, "not UTF-8"},
  };
  for (const auto& [tensors, text] : cases) {
    try {
      write_safetensors(path(), tensors);
      ADD_FAILURE() << "accepted; expected: " << text;
    } catch (const ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  }
  EXPECT_EQ(read_file(path()), before);
}

TEST_F(SafetensorsTest, MissingFileIsAFileErrorWithItsName) {
  try {
    read_safetensors(path());
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.code(), ENOENT);
    EXPECT_EQ(error.path(), path());
  }
}

TEST_F(SafetensorsTest, LengthOfTheHeaderIsCheckedAgainstTheFile) {
  std::ofstream(path(), std::ios::binary) << "1234567";
  EXPECT_THAT(refusal(), HasSubstr("got 7 bytes, expected at least 8"));
  for (const uint64_t length : {uint64_t{1} << 63, uint64_t{100'000'001}, uint64_t{3}}) {
    std::ofstream out(path(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << "{}";
    out.close();
    EXPECT_THAT(refusal(), HasSubstr(concat("length is ", length, ", expected at most 2")));
  }
}

TEST_F(SafetensorsTest, EveryFaultOfAHeaderHasItsOwnMessage) {
  const auto expect = [&](const std::string& header, const std::string& text, size_t bytes = 4) {
    EXPECT_THAT(refusal_of(header, bytes), HasSubstr(text)) << header.substr(0, 200);
  };
  expect("", "not valid JSON");
  expect("[]", "the header is an array, expected an object");
  expect("7", "the header is 7, expected an object");
  expect("{" + entry("a") + "}x", "not valid JSON at byte");
  expect("{\"\xff\":{}}", "not valid JSON at byte 3");
  expect(R"({"a":)" + std::string(100'000, '['), "tensor 'a': got an array, expected an object");
  expect(R"({"a":{"dtype":{}}})", "tensor 'a': dtype is an object, expected a string");
  expect(R"({"a":{"dtype":[]}})", "tensor 'a': dtype is an array, expected a string");
  expect(R"({"a":{"dtype":"F99"}})", "tensor 'a': unknown dtype 'F99'");
  expect(R"({"a":{"shape":"x"}})", "tensor 'a': shape is a string, expected an array");
  expect(R"({"a":{"shape":[[1]]}})", "tensor 'a': shape contains an array");
  expect(R"({"a":{"size":1}})", "tensor 'a': unknown key 'size'");
  expect(R"({"a":{"shape":[],"shape":[]}})", "tensor 'a': the key 'shape' occurs twice");
  expect(R"({"a":{"shape":[]}})", "tensor 'a': incomplete");
  expect(R"({"a":{"data_offsets":[0]}})", "tensor 'a': got 1 data_offsets");
  expect(R"({"a":{"data_offsets":[0,1,2]}})", "tensor 'a': got more than two data_offsets");
  expect(R"({"__metadata__":{"x":1}})", "__metadata__: 'x' is 1, expected a string");
  expect(R"({"__metadata__":{"x":{}}})", "__metadata__: 'x' is an object, expected a string");
  expect(R"({"__metadata__":{"x":"","x":""}})", "__metadata__: the key 'x' occurs twice");
  expect("{" + entry("a") + "," + entry("a") + "}", "tensor 'a': the name occurs twice");
  expect("{" + entry("a", "[-1]") + "}", "tensor 'a': shape contains -1");
  expect("{" + entry("a", "[1.5]") + "}", "tensor 'a': shape contains 1.5");
  expect("{" + entry("a", "[9223372036854775808]") + "}", "contains 9223372036854775808");
  expect("{" + entry("a", "[4611686018427387904,4]") + "}",
         "the size of shape [4611686018427387904, 4] overflows");
  expect("{" + entry("a", "[0,4611686018427387904,8]", "[0,0]") + "}", "overflows", 0);
  expect("{" + entry("a", "[2]") + "}", "got 4 bytes, expected 8 for F32 of shape [2]");
  expect("{" + entry("a", "[1]", "[4,8]") + "}", "tensor 'a': data_offsets [4, 8] leave a hole", 8);
  expect("{" + entry("a") + "," + entry("b") + "}", "tensor 'b': data_offsets [0, 4] overlap");
  expect("{" + entry("a") + "}" + std::string(1, '\0') + "garbage", "a zero byte at");
  expect("{" + entry("a", "[0]", "[4,0]") + "}", "end before they begin");
  expect("{" + entry("a") + "}", "reach past the end of the file, which holds 3 bytes", 3);
  expect("{" + entry("a") + "}", "got 5 bytes of data, expected 4", 5);
}

TEST_F(SafetensorsTest, DamagedHeadersAreRefusedOrHarmless) {
  const std::string good = "{" + entry("a", "[2,3]", "[0,24]") + "," +
                           entry("b", "[1]", "[24,28]") + R"(,"__metadata__":{"format":"pt"}})";
  ASSERT_EQ(parse_header(path(), good, 28).entries.size(), 2U);
  std::mt19937 random(1);
  int refused = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string bad = good;
    for (unsigned n = 1 + random() % 3; n > 0; --n) {
      const char byte = random() % 2 == 0 ? good[random() % good.size()] : '\x5b';
      bad[random() % bad.size()] = random() % 4 == 0 ? static_cast<char>(random()) : byte;
    }
    if (random() % 4 == 0) bad.resize(random() % bad.size());
    try {
      parse_header(path(), bad, 28);
    } catch (const CorruptFileError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10'000);
  EXPECT_LT(refused, 20'000);  // a changed name is harmless
}

class FailingWrite : public FileSystem {
 public:
  ssize_t write(int, const void*, size_t) override {
    errno = ENOSPC;
    return -1;
  }
};

TEST_F(SafetensorsTest, FullDiskNamesFileAndErrno) {
  FailingWrite full;
  const ScopedFileSystem scope(full);
  try {
    write_safetensors(path(), {{"a", at::ones({2})}});
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.code(), ENOSPC);
    EXPECT_EQ(error.path(), path());
  }
}

}  // namespace
}  // namespace bellows::checkpoint
