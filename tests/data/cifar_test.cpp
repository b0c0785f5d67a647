#include "bellows/data/cifar.h"

#include <gmock/gmock.h>
#include <string>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "bellows/data/cifar_file.h"
#include "tests/data/damage.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Record i: labels, then pixels (i + place) mod 256.
std::string records(const std::vector<int>& labels, int label_bytes = 1) {
  std::string bytes;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (label_bytes == 2) bytes += '\x63';  // a coarse label, not looked at
    bytes += static_cast<char>(labels[i]);
    for (int64_t place = 0; place < kCifarImageBytes; ++place)
      bytes += static_cast<char>(i + static_cast<size_t>(place));
  }
  return bytes;
}

TEST(CifarTest, TrainingBatchesComeOneAfterTheOtherAsPlanes) {
  const TemporaryFolder folder;
  for (int i = 1; i <= 5; ++i) {
    const std::string bytes = records({i, 9 - i});
    const std::string name = "data_batch_" + std::to_string(i) + ".bin";
    i % 2 == 0 ? folder.write(name + ".gz", test::gzip(bytes)) : folder.write(name, bytes);
  }
  const TensorDataset dataset = read_cifar_dataset({.root = folder.path()});
  EXPECT_EQ(dataset.size(), 10);
  const Tree sample = dataset.get(3);
  EXPECT_EQ(sample[1].tensor().item<int64_t>(), 7);
  const at::Tensor image = sample[0].tensor();
  EXPECT_EQ(image.sizes(), (at::IntArrayRef{3, 32, 32}));
  EXPECT_EQ(image.scalar_type(), at::kByte);
  EXPECT_EQ(image[2][1][5].item<int>(), (1 + 2 * 1024 + 32 + 5) % 256);
  const TensorDataset limited = read_cifar_dataset({.root = folder.path(), .limit = 3});
  EXPECT_EQ(limited.size(), 3);
  EXPECT_TRUE(at::equal(limited.tensors()[0], dataset.tensors()[0].narrow(0, 0, 3)));
}

TEST(CifarTest, OfOneHundredClassesTheFineLabelCounts) {
  const TemporaryFolder folder;
  folder.write("test.bin", records({99, 7}, 2));
  const TensorDataset dataset =
      read_cifar_dataset({.root = folder.path(), .train = false, .classes = 100});
  EXPECT_EQ(dataset.get(0)[1].tensor().item<int64_t>(), 99);
  EXPECT_EQ(dataset.get(1)[0].tensor()[0][0][0].item<int>(), 1);
}

TEST(CifarTest, DamageNamesFileRecordAndWhatIsWrong) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& bytes) {
    const auto path = folder.write("test_batch.bin", bytes);
    const std::string message = message_of<CorruptFileError>(
        [&] { read_cifar_dataset({.root = folder.path(), .train = false}); });
    EXPECT_THAT(message, StartsWith(path.string() + ": "));
    return message.substr(path.string().size() + 2);
  };
  EXPECT_EQ(refused(""), "got 0 bytes, expected records of 3073 bytes");
  EXPECT_EQ(refused(records({1, 2}).substr(0, 4000)),
            "record 1: got 927 bytes, expected 3073: cut off");
  EXPECT_EQ(refused(records({1, 2, 10})), "record 2: got label 10, expected 0 to 9");
  EXPECT_THAT(refused(test::gzip(records({1, 2})).substr(0, 60)),
              AllOf(StartsWith("record "), HasSubstr("the gzip data are cut off")));
}

TEST(CifarTest, MissingFilesSayWhereTheSetComesFrom) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<EnvironmentError>([&] { read_cifar_dataset({.root = folder.path()}); }),
              AllOf(StartsWith((folder.path() / "data_batch_1.bin").string()),
                    HasSubstr("cifar-10-binary.tar.gz")));
  EXPECT_THROW(read_cifar_dataset({.classes = 20}), ValueError);
  EXPECT_THROW(read_cifar_dataset({.limit = -1}), ValueError);
}

TEST(CifarTest, DamagedFilesAreReadOrRefused) {
  const auto read = [](const std::filesystem::path& path) { read_cifar_file(path, 1, 10); };
  const auto plain = test::read_damaged(records({1, 2}), 1, 300, read);
  EXPECT_GT(plain.read, 50);
  EXPECT_GT(plain.refused, 50);
  EXPECT_GT(test::read_damaged(test::gzip(records({1, 2})), 40, 300, read).refused, 100);
}

}  // namespace
}  // namespace bellows::data
