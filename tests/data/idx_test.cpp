#include "bellows/data/idx.h"

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <random>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <ATen/ops/bincount.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/idx_file.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::gzip;
using test::idx_bytes;
using test::message_of;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using namespace std::string_literals;

// Root may read everything: become another user for the lifetime of this.
class WithoutPrivileges {
 public:
  WithoutPrivileges() {
    if (::geteuid() == 0) changed_ = ::seteuid(65534) == 0;
  }
  ~WithoutPrivileges() {
    if (changed_ && ::seteuid(0) != 0) ADD_FAILURE() << "could not become root again";
  }

 private:
  bool changed_ = false;
};

class IdxTest : public ::testing::Test {
 protected:
  at::Tensor read(std::string_view bytes) const { return read_idx(folder_.write("file", bytes)); }
  // The message without the path, which it must begin with.
  std::string refused(std::string_view bytes) const {
    const auto path = folder_.write("file", bytes);
    const std::string message = message_of<CorruptFileError>([&] { read_idx(path); });
    EXPECT_THAT(message, StartsWith(path.string() + ": "));
    return message.substr(std::min(message.size(), path.string().size() + 2));
  }

  TemporaryFolder folder_;
};

TEST_F(IdxTest, PlainAndCompressedFilesGiveTheSameTensor) {
  const std::string bytes = idx_bytes(0x08, {2, 3}, "\x00\x01\x02\xfd\xfe\xff"s);
  const at::Tensor expected =
      at::tensor({0, 1, 2, 253, 254, 255}, at::kLong).to(at::kByte).view({2, 3});
  const at::Tensor plain = read(bytes);
  EXPECT_EQ(plain.scalar_type(), at::kByte);
  EXPECT_TRUE(at::equal(plain, expected));
  EXPECT_TRUE(at::equal(read(gzip(bytes)), expected));
}

TEST_F(IdxTest, EveryTypeIsReadInBigEndianOrder) {
  const auto check = [&](uint8_t type, const std::string& data, const at::Tensor& expected) {
    const at::Tensor got = read(idx_bytes(type, {2}, data));
    EXPECT_EQ(got.scalar_type(), expected.scalar_type());
    EXPECT_TRUE(at::equal(got, expected)) << static_cast<int>(type);
  };
  check(0x09, "\xff\x7f"s, at::tensor({-1, 127}, at::kLong).to(at::kChar));
  check(0x0B, "\x01\x02\xff\xfe"s, at::tensor({0x0102, -2}, at::kLong).to(at::kShort));
  check(0x0C, "\x01\x02\x03\x04\xff\xff\xff\xfd"s, at::tensor({0x01020304, -3}, at::kInt));
  check(0x0D, "\x3f\x80\x00\x00\xc0\x20\x00\x00"s, at::tensor({1.0, -2.5}, at::kFloat));
  check(0x0E, "\x3f\xf0\0\0\0\0\0\0\xc0\x04\0\0\0\0\0\0"s, at::tensor({1.0, -2.5}, at::kDouble));
}

TEST_F(IdxTest, CompressionIsSeenByContentAndTheSuffixIsAddedWhereNeeded) {
  const std::string bytes = idx_bytes(0x08, {1}, "x");
  EXPECT_EQ(read_idx(folder_.write("plain.gz", bytes)).numel(), 1);
  folder_.write("images.gz", gzip(bytes));
  EXPECT_EQ(read_idx(folder_.path() / "images").numel(), 1);
}

TEST_F(IdxTest, SeveralGzipMembersAreOneFile) {
  const std::string bytes = idx_bytes(0x08, {4}, "abcd");
  EXPECT_TRUE(at::equal(read(gzip(bytes.substr(0, 5)) + gzip(bytes.substr(5))), read(bytes)));
}

TEST_F(IdxTest, DataOfManyPiecesComesWhole) {
  std::string data(5'000'000, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 2654435761u >> 24);
  const std::string bytes = idx_bytes(0x08, {5'000'000}, data);
  for (const std::string& file : {bytes, gzip(bytes)}) {
    const at::Tensor got = read(file);
    EXPECT_EQ(std::string_view(static_cast<const char*>(got.const_data_ptr()), data.size()), data);
  }
}

TEST_F(IdxTest, EmptyDimensionGivesAnEmptyTensor) {
  EXPECT_EQ(read(idx_bytes(0x08, {0, 28, 28}, "")).sizes(), (at::IntArrayRef{0, 28, 28}));
}

TEST_F(IdxTest, AbsentFileSaysBothNamesThatWereTried) {
  const std::string path = (folder_.path() / "no-such-file").string();
  try {
    read_idx(path);
    FAIL() << "expected FileError";
  } catch (const FileError& error) {
    EXPECT_EQ(error.code(), ENOENT);
    EXPECT_EQ(error.what(), path + ": open (also as no-such-file.gz): No such file or directory");
  }
}

TEST_F(IdxTest, FolderIsRefusedAsSuch) {
  EXPECT_EQ(message_of<FileError>([&] { read_idx(folder_.path()); }),
            folder_.path().string() + ": read: Is a directory");
}

TEST_F(IdxTest, PipeIsRefusedWithoutWaitingForAWriter) {
  const auto path = folder_.path() / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(message_of<EnvironmentError>([&] { read_idx(path); }),
              HasSubstr("expected a regular file"));
}

TEST_F(IdxTest, FileWithoutReadPermissionIsAFileError) {
  const auto path = folder_.write("file", idx_bytes(0x08, {1}, "x"));
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0711), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0000), 0);
  const WithoutPrivileges guard;
  try {
    read_idx(path);
    FAIL() << "expected FileError";
  } catch (const FileError& error) {
    EXPECT_EQ(error.code(), EACCES);
    EXPECT_EQ(error.path(), path);
  }
}

TEST_F(IdxTest, HeaderThatIsCutOffSaysHowManyBytesThereAre) {
  EXPECT_EQ(refused(""), "got 0 bytes, expected an IDX header of at least 4");
  EXPECT_EQ(refused("\0\0"s), "got 2 bytes, expected an IDX header of at least 4");
  EXPECT_EQ(refused("\0\0\x08\x03\0\0\0\x02\0"s),
            "got 9 bytes, expected an IDX header of at least 16");
}

TEST_F(IdxTest, WrongMagicTypeAndRankSayWhatIsAllowed) {
  EXPECT_EQ(refused("\x89PNG\r\n"),
            "got magic 89 50 4e 47, expected 00 00 <type> <rank>: not an IDX file");
  EXPECT_EQ(refused(idx_bytes(0x0a, {1}, "x")),
            "got type 0a (magic 00 00 0a 01), expected 08 (uint8), 09 (int8), 0b (int16), 0c "
            "(int32), 0d (float32) or 0e (float64)");
  EXPECT_EQ(refused("\0\0\x08\0x"s), "got rank 0 (magic 00 00 08 00), expected 1 to 64");
  EXPECT_EQ(refused(idx_bytes(0x08, std::vector<uint32_t>(65, 1), "x")),
            "got rank 65 (magic 00 00 08 41), expected 1 to 64");
}

TEST_F(IdxTest, MissingDataSaysBytesFoundAndExpected) {
  EXPECT_EQ(refused(idx_bytes(0x0B, {3, 2}, "12345678901")),
            "got 11 bytes of data, expected 12 for 3x2 int16: cut off");
}

TEST_F(IdxTest, ExcessDataSaysBytesFoundAndExpected) {
  EXPECT_EQ(refused(idx_bytes(0x08, {3}, "12345")),
            "got 5 bytes of data, expected 3 for 3 uint8: excess bytes");
  EXPECT_EQ(refused(gzip(idx_bytes(0x08, {3}, "12345"))),
            "got 5 bytes of data, expected 3 for 3 uint8: excess bytes");
  EXPECT_EQ(refused(gzip(idx_bytes(0x08, {3}, std::string(100'000, 'x')))),
            "got 4099 or more bytes of data, expected 3 for 3 uint8: excess bytes");
}

TEST_F(IdxTest, TruncatedGzipNamesFileAndBytesAtEveryLength) {
  const std::string whole = gzip(idx_bytes(0x08, {200}, std::string(200, 'x')));
  for (size_t length = 2; length < whole.size(); ++length) {
    EXPECT_THAT(refused(whole.substr(0, length)),
                AllOf(StartsWith("got "), HasSubstr("the gzip data are cut off")))
        << length;
  }
}

TEST_F(IdxTest, TruncatedGzipSaysBytesFoundAndExpected) {
  std::string data(3'000'000, '\0');
  std::mt19937 random(1);
  for (char& byte : data) byte = static_cast<char>(random());
  const std::string whole = gzip(idx_bytes(0x08, {3'000'000}, data));
  EXPECT_THAT(refused(whole.substr(0, whole.size() / 2)),
              ::testing::ContainsRegex("^got 1[45][0-9]{5} bytes of data, expected 3000000 for "
                                       "3000000 uint8: the gzip data are cut off"));
}

TEST_F(IdxTest, WrongChecksumIsNoticedAlthoughAllDataCame) {
  std::string file = gzip(idx_bytes(0x08, {4}, "abcd"));
  file[file.size() - 8] ^= 1;
  EXPECT_EQ(refused(file),
            "got all of the 4 bytes of data, but the gzip data are damaged: incorrect data check");
}

TEST_F(IdxTest, ForeignBytesAfterTheGzipDataAreNoticed) {
  const std::string file = gzip(idx_bytes(0x08, {4}, "abcd"));
  EXPECT_THAT(refused(file + "and something else that is no gzip member"),
              HasSubstr("got all of the 4 bytes of data, but the gzip data are damaged"));
  EXPECT_THAT(refused(file + "x"), HasSubstr("the gzip data are cut off"));
}

TEST_F(IdxTest, SizesThatOverflowAreRefused) {
  const uint32_t huge = 0xffffffff;
  EXPECT_THAT(refused(idx_bytes(0x08, {huge, huge, huge}, "x")),
              HasSubstr("got sizes 4294967295x4294967295x4294967295 of uint8, expected fewer than "
                        "2^63 bytes"));
  EXPECT_THAT(refused(idx_bytes(0x08, {0, huge, huge, huge}, "")), HasSubstr("fewer than 2^63"));
  EXPECT_THAT(refused(idx_bytes(0x0E, {0x80000000u, 0x40000000u}, "x")),
              HasSubstr("fewer than 2^63"));
}

TEST_F(IdxTest, HugeClaimOfASmallFileIsRefusedAtOnceAndWithoutMemory) {
  const std::string plain = idx_bytes(0x08, {1u << 20, 1u << 10, 1u << 10}, "abcdefgh12");
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_EQ(refused(plain),
            "got 10 bytes of data, expected 1099511627776 for 1048576x1024x1024 uint8: cut off");
  const std::string packed = gzip(plain);
  EXPECT_EQ(refused(packed),
            "got at most " + std::to_string(packed.size() * 1032 - 16) +
                " bytes of data, expected 1099511627776 for 1048576x1024x1024 uint8: cut off, or a "
                "damaged header");
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 4096) << "KiB";
}

TEST_F(IdxTest, ClaimWithinReachOfTheCompressionTakesMemoryOnlyForWhatComes) {
  // 1 MB of noise could decompress to 1 GB; the header claims that, one MB comes.
  std::string noise(1'000'000, '\0');
  std::mt19937 random(1);
  for (char& byte : noise) byte = static_cast<char>(random());
  const auto path = folder_.write("file", gzip(idx_bytes(0x08, {1'000'000'000}, noise)));
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_THAT(message_of<CorruptFileError>([&] { read_idx(path); }),
              HasSubstr("got 1000000 bytes of data, expected 1000000000"));
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 8192) << "KiB";
}

// Damage of every sort must end in a tensor or a bellows::Error, never in a crash or a great
// allocation.
TEST_F(IdxTest, TwoThousandDamagedFilesEachParseOrAreRefused) {
  const std::string good = idx_bytes(0x0B, {5, 4, 3}, std::string(120, '\x11'));
  std::mt19937 random(20);
  const auto below = [&](size_t limit) { return random() % limit; };
  const auto damage = [&](std::string bytes) {
    if (below(3) == 0) bytes.resize(below(bytes.size() + 8));
    for (size_t flips = below(4); flips > 0 && !bytes.empty(); --flips) {
      // Half of them in the header, where decisions are made.
      const size_t place = below(below(2) == 0 ? std::min<size_t>(bytes.size(), 18) : bytes.size());
      bytes[place] = static_cast<char>(random());
    }
    return bytes;
  };
  int parsed = 0;
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string bytes = i % 3 == 0   ? damage(good)
                              : i % 3 == 1 ? damage(gzip(good))
                                           : gzip(damage(good));
    const auto path = folder_.write("file", bytes);
    try {
      const at::Tensor tensor = read_idx(path);
      tensor.sum();
      ++parsed;
    } catch (const bellows::Error& error) {
      EXPECT_THAT(error.what(), StartsWith(path.string() + ": got "));
      ++refused;
    }
  }
  EXPECT_GT(parsed, 100);
  EXPECT_GT(refused, 1000);
}

class IdxDatasetTest : public ::testing::Test {
 protected:
  void write(const std::string& images, const std::string& labels) const {
    folder_.write("train-images-idx3-ubyte", images);
    folder_.write("train-labels-idx1-ubyte", labels);
  }
  // Three images of 2x2 pixels, labels 0, 2, 1.
  void write_good() const {
    write(idx_bytes(0x08, {3, 2, 2}, "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\xfe\xff"s),
          idx_bytes(0x08, {3}, "\x00\x02\x01"s));
  }
  IdxDatasetOptions options() const { return {.root = folder_.path(), .classes = 3}; }
  std::string refused() const {
    return message_of<CorruptFileError>([&] { read_idx_dataset(options()); });
  }
  std::string path_of(const std::string& name) const { return (folder_.path() / name).string(); }

  TemporaryFolder folder_;
};

TEST_F(IdxDatasetTest, SampleIsANormalisedImageAndAnIntegerLabel) {
  write_good();
  const TensorDataset dataset = read_idx_dataset(options());
  EXPECT_EQ(dataset.size(), 3);
  const Tree sample = dataset.get(1);
  EXPECT_EQ(sample[0].tensor().sizes(), (at::IntArrayRef{1, 2, 2}));
  EXPECT_EQ(sample[0].tensor().scalar_type(), at::kFloat);
  EXPECT_EQ(sample[1].tensor().scalar_type(), at::kLong);
  EXPECT_EQ(sample[1].tensor().item<int64_t>(), 2);
  const float expected = (5.0f / 255.0f - 0.2860f) / 0.3530f;
  EXPECT_EQ(sample[0].tensor()[0][0][1].item<float>(), expected);
}

TEST_F(IdxDatasetTest, LimitTakesTheFirstSamplesAndMayExceedTheSet) {
  write_good();
  IdxDatasetOptions limited = options();
  const TensorDataset all = read_idx_dataset(limited);
  limited.limit = 2;
  const TensorDataset two = read_idx_dataset(limited);
  EXPECT_EQ(two.size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal(two.tensors()[i], all.tensors()[i].narrow(0, 0, 2)));
  }
  limited.limit = 1000;
  EXPECT_EQ(read_idx_dataset(limited).size(), 3);
}

TEST_F(IdxDatasetTest, OptionsOutOfRangeAreRefusedBeforeAnyFileIsRead) {
  const auto message = [](IdxDatasetOptions options) {
    options.root = "/no/such/folder";
    return message_of<ValueError>([&] { read_idx_dataset(options); });
  };
  EXPECT_EQ(message({.limit = -1}), "IDX dataset: got limit -1, expected 0 (all samples) or more");
  EXPECT_EQ(message({.classes = 0}), "IDX dataset: got 0 classes, expected at least 1");
  EXPECT_EQ(message({.std = 0}), "IDX dataset: got std 0, expected a finite number above 0");
  EXPECT_THAT(message({.mean = NAN}), HasSubstr("got mean nan"));
}

TEST_F(IdxDatasetTest, MissingFilesNameTheFileAndWhereTheSetComesFrom) {
  const auto message = [&] {
    return message_of<EnvironmentError>([&] { read_idx_dataset(options()); });
  };
  EXPECT_THAT(message(), AllOf(StartsWith(path_of("train-images-idx3-ubyte") + ": open"),
                               HasSubstr("No such file or directory"),
                               HasSubstr("package dataset-fashion-mnist provides")));
  write_good();
  std::filesystem::remove(path_of("train-labels-idx1-ubyte"));
  EXPECT_THAT(message(), StartsWith(path_of("train-labels-idx1-ubyte") + ": open"));
}

TEST_F(IdxDatasetTest, DifferentCountsNameBothFilesAndCounts) {
  write(idx_bytes(0x08, {2, 1, 1}, "ab"), idx_bytes(0x08, {3}, "\0\1\2"s));
  EXPECT_EQ(refused(), path_of("train-labels-idx1-ubyte") +
                           ": got 3 labels, expected 2, one for each image in " +
                           path_of("train-images-idx3-ubyte"));
}

TEST_F(IdxDatasetTest, LabelOutOfRangeNamesIndexLabelAndRangeAlsoPastTheLimit) {
  write(idx_bytes(0x08, {3, 1, 1}, "abc"), idx_bytes(0x08, {3}, "\0\2\3"s));
  IdxDatasetOptions limited = options();
  limited.limit = 1;
  EXPECT_EQ(message_of<CorruptFileError>([&] { read_idx_dataset(limited); }),
            path_of("train-labels-idx1-ubyte") + ": label 2 is 3, expected 0 to 2");
}

TEST_F(IdxDatasetTest, WrongRankTypeOrEmptyImagesAreRefused) {
  const std::string labels = idx_bytes(0x08, {2}, "\0\1"s);
  const std::string images = path_of("train-images-idx3-ubyte");
  write(idx_bytes(0x08, {2, 2}, "abcd"), labels);
  EXPECT_EQ(refused(), images + ": got 2x2 uint8 (rank 2), expected uint8 of rank 3");
  write(idx_bytes(0x0B, {2, 1, 1}, "abcd"), labels);
  EXPECT_EQ(refused(), images + ": got 2x1x1 int16 (rank 3), expected uint8 of rank 3");
  write(idx_bytes(0x08, {2, 1, 1}, "ab"), idx_bytes(0x08, {2, 1}, "\0\1"s));
  EXPECT_EQ(refused(), path_of("train-labels-idx1-ubyte") +
                           ": got 2x1 uint8 (rank 2), expected uint8 of rank 1");
  write(idx_bytes(0x08, {0, 2, 2}, ""), idx_bytes(0x08, {0}, ""));
  EXPECT_EQ(refused(),
            images + ": got images of shape 0x2x2, expected at least one image and one pixel");
  write(idx_bytes(0x08, {2, 0, 2}, ""), labels);
  EXPECT_THAT(refused(), HasSubstr("shape 2x0x2"));
}

TEST_F(IdxDatasetTest, NormalisationIsBitEqualToLibTorchsOperators) {
  std::string pixels(256, '\0');
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<char>(i);
  write(idx_bytes(0x08, {1, 16, 16}, pixels), idx_bytes(0x08, {1}, "\0"s));
  const at::Tensor values = read_idx(path_of("train-images-idx3-ubyte")).unsqueeze(1);
  for (const auto& [mean, std] : {std::pair{0.2860, 0.3530}, {0.1307, 0.3081}, {0.0, 1.0 / 3}}) {
    IdxDatasetOptions set = options();
    set.mean = mean;
    set.std = std;
    const at::Tensor expected = values.to(at::kFloat).div(255).sub(mean).div(std);
    EXPECT_TRUE(at::equal(read_idx_dataset(set).tensors()[0], expected)) << mean;
  }
}

TEST_F(IdxDatasetTest, BytesStayAsTheyAre) {
  write(idx_bytes(0x08, {2, 1, 3}, "\0\x01\x7f\x80\xfe\xff"s), idx_bytes(0x08, {2}, "\0\1"s));
  IdxDatasetOptions set = options();
  set.bytes = true;
  set.limit = 1;
  const at::Tensor images = read_idx_dataset(set).tensors()[0];
  EXPECT_EQ(images.sizes(), (at::IntArrayRef{1, 1, 1, 3}));
  const at::Tensor all = read_idx(path_of("train-images-idx3-ubyte"));
  EXPECT_TRUE(at::equal(images[0][0], all[0]));
}

TEST(FashionMnistTest, WholeSetHasItsKnownSizesAndLabels) {
  for (const bool train : {true, false}) {
    const TensorDataset dataset = read_idx_dataset({.train = train});
    const int64_t count = train ? 60000 : 10000;
    EXPECT_EQ(dataset.size(), count);
    EXPECT_EQ(dataset.tensors()[0].sizes(), (at::IntArrayRef{count, 1, 28, 28}));
    EXPECT_TRUE(
        at::equal(at::bincount(dataset.tensors()[1]), at::ones({10}, at::kLong).mul_(count / 10)));
    EXPECT_NEAR(dataset.tensors()[0].mean().item<double>(), 0, 0.01);
    EXPECT_NEAR(dataset.tensors()[0].std().item<double>(), 1, 0.01);
  }
}

}  // namespace
}  // namespace bellows::data
