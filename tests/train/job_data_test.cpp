#include "bellows/train/job_data.h"

#include <array>
#include <gmock/gmock.h>
#include <limits>
#include <set>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/idx.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/data/transforms.h"
#include "tests/data/image_files.h"
#include "tests/data/support.h"
#include "tests/support/idx_files.h"

namespace bellows::train {
namespace {

using data::test::message_of;
using data::test::picture;
using data::test::png_bytes;
using data::test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Setting = std::pair<const char*, OptionValue>;

class DataTableTest : public ::testing::Test {
 protected:
  DataTable table(const std::string& name, const std::vector<Setting>& settings = {},
                  uint64_t seed = 1) {
    options_ = Options("data");
    options_.set("dataset", name);
    options_.set("root", folder_.path().string());
    options_.set("batch_size", int64_t{4});
    for (const auto& [key, value] : settings) options_.set(key, value, "test");
    DataTable result(options_, seed);
    options_.reject_unknown();
    return result;
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    folder_.write(name, bytes);
  }
  void write_idx() const { bellows::testing::write_image_set(folder_.path(), 20, 12); }
  void write_folder() const {
    for (const char* part : {"train", "val"}) {
      for (int i = 0; i < 6; ++i) {
        const std::string kind = i % 2 == 0 ? "cat/" : "dog/";
        write(std::string(part) + "/" + kind + std::to_string(i) + ".png",
              png_bytes(picture(90 + i, 120, 3, i)));
      }
    }
  }

  TemporaryFolder folder_;
  Options options_{"data"};
};

Tree first_of(data::Loader& loader, int64_t epoch = 0) {
  loader.start(epoch);
  return loader.next()->data;
}

TEST_F(DataTableTest, IdxSetsAreNormalisedOnceOrAfterAugmentationWithTheSameBits) {
  write_idx();
  auto plain = table("mnist");
  const auto evaluation = plain.evaluation();
  EXPECT_EQ(plain.classes(), 10);
  EXPECT_EQ(plain.example()[0].tensor().sizes(), (at::IntArrayRef{1, 1, 28, 28}));
  EXPECT_EQ(evaluation->batch_size(), 1000);
  const Tree expected = first_of(*evaluation);
  auto augmented = table("mnist", {{"augment", std::vector<std::string>{"crop", "flip"}}});
  const auto same = augmented.evaluation();
  EXPECT_TRUE(at::equal(first_of(*same)[0].tensor(), expected[0].tensor()));
  const auto training = augmented.training();
  const at::Tensor images = first_of(*training)[0].tensor();
  EXPECT_EQ(images.sizes(), (at::IntArrayRef{4, 1, 28, 28}));
  EXPECT_TRUE(at::equal(first_of(*training)[0].tensor(), images));
  EXPECT_FALSE(at::equal(first_of(*training, 1)[0].tensor(), images));
  const auto untouched = plain.training();
  EXPECT_FALSE(at::equal(first_of(*untouched)[0].tensor(), images));
}

// Whole batches of bytes in one pass are the samples one by one, as floats.
TEST_F(DataTableTest, CropsAndFlipsAreThoseOfTheSamplesOneByOne) {
  write_idx();
  const auto images = std::make_shared<data::TensorDataset>(
      data::read_idx_dataset({.root = folder_.path(), .mean = 0, .std = 1}));
  const std::vector<std::pair<std::vector<std::string>, data::ImageTransform>> ways = {
      {{"crop", "flip"},
       data::compose({data::random_crop(28, 28, 4), data::random_horizontal_flip()})},
      {{"crop"}, data::random_crop(28, 28, 4)},
      {{"flip"}, data::random_horizontal_flip()}};
  for (const auto& [words, transform] : ways) {
    const auto order = std::make_shared<data::RandomSampler>(20, 7);
    const auto expected = data::make_loader(
        data::map(images, data::on_image(transform)), order,
        {.batch_size = 4,
         .seed = 7,
         .on_batch = data::on_images([](const at::Tensor& batch, data::Random&) {
           return data::normalize_channels(batch, std::array{0.1307}, std::array{0.3081});
         })});
    for (const int64_t workers : {0, 2}) {
      const auto training =
          table("mnist", {{"augment", words}, {"workers", workers}}, 7).training();
      for (const int64_t epoch : {0, 3}) {
        EXPECT_TRUE(at::equal(first_of(*training, epoch)[0].tensor(),
                              first_of(*expected, epoch)[0].tensor()));
        EXPECT_TRUE(at::equal(first_of(*training, epoch)[1].tensor(),
                              first_of(*expected, epoch)[1].tensor()));
      }
    }
  }
}

TEST_F(DataTableTest, MixedSamplesHaveProbabilitiesAsTargets) {
  write_idx();
  auto plain = table("mnist", {}, 7);
  const auto untouched = plain.training();
  const std::vector<std::vector<Setting>> ways = {
      {{"mixup", 0.4}}, {{"cutmix", 1.0}}, {{"mixup", 0.4}, {"cutmix", 1.0}}};
  for (const std::vector<Setting>& way : ways) {
    std::vector<Tree> seen;
    for (const int64_t workers : {0, 2}) {
      std::vector<Setting> keys = way;
      keys.emplace_back("workers", workers);
      auto mixed = table("mnist", keys, 7);
      const auto evaluation = mixed.evaluation();
      EXPECT_EQ(first_of(*evaluation)[1].tensor().scalar_type(), at::kLong);
      const auto training = mixed.training();
      for (const int64_t epoch : {0, 1}) {
        const Tree batch = first_of(*training, epoch), before = first_of(*untouched, epoch);
        const at::Tensor targets = batch[1].tensor();
        EXPECT_EQ(targets.sizes(), (at::IntArrayRef{4, 10}));
        EXPECT_TRUE(at::allclose(targets.sum(1), at::ones(4)));
        EXPECT_GT(targets.gather(1, before[1].tensor().unsqueeze(1)).min().item<float>(), 0);
        EXPECT_FALSE(at::equal(batch[0].tensor(), before[0].tensor()));
        seen.push_back(batch);
      }
    }
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::equal(seen[i][0].tensor(), seen[i + 2][0].tensor()));
      EXPECT_TRUE(at::equal(seen[i][1].tensor(), seen[i + 2][1].tensor()));
    }
  }
}

TEST_F(DataTableTest, CifarIsNormalisedForEachChannel) {
  std::string record(1 + 3072, '\x33');
  record[0] = 7;
  write("test_batch.bin", record);
  for (int i = 1; i <= 5; ++i) write("data_batch_" + std::to_string(i) + ".bin", record);
  auto cifar = table("cifar10", {{"workers", int64_t{2}}, {"limit", int64_t{4}}});
  const auto evaluation = cifar.evaluation();
  const Tree batch = first_of(*evaluation);
  EXPECT_EQ(batch[1].tensor().item<int64_t>(), 7);
  for (const auto& [channel, mean, std] :
       {std::tuple{0, 0.4914, 0.2470}, {1, 0.4822, 0.2435}, {2, 0.4465, 0.2616}}) {
    EXPECT_NEAR(batch[0].tensor()[0][channel][3][5].item<double>(), (0.2 - mean) / std, 1e-6);
  }
  EXPECT_EQ(cifar.training()->samples(), 4);
}

TEST_F(DataTableTest, FoldersBecomeSquareImagesOfOneSize) {
  write_folder();
  auto folder = table("image-folder", {{"image_size", int64_t{32}}, {"workers", int64_t{2}}});
  const auto evaluation = folder.evaluation();
  EXPECT_EQ(folder.classes(), 2);
  EXPECT_EQ(evaluation->samples(), 6);
  EXPECT_EQ(evaluation->batch_size(), 4);
  EXPECT_EQ(folder.example()[0].tensor().sizes(), (at::IntArrayRef{1, 3, 32, 32}));
  for (const char* word : {"resized-crop", "crop", "flip", "jitter"}) {
    auto augmented = table(
        "image-folder", {{"image_size", int64_t{32}}, {"augment", std::vector<std::string>{word}}});
    augmented.evaluation();
    const auto training = augmented.training();
    const Tree batch = first_of(*training);
    EXPECT_EQ(batch[0].tensor().sizes(), (at::IntArrayRef{4, 3, 32, 32})) << word;
    EXPECT_EQ(batch[1].tensor().scalar_type(), at::kLong);
    EXPECT_TRUE(at::equal(first_of(*training)[0].tensor(), batch[0].tensor()));
  }
}

TEST_F(DataTableTest, MoreClassesInTrainingThanInEvaluationAreRefused) {
  write_folder();
  write("train/emu/1.png", png_bytes(picture(8, 8)));
  auto folder = table("image-folder");
  folder.evaluation();
  EXPECT_THAT(message_of<EnvironmentError>([&] { folder.training(); }),
              HasSubstr("got classes cat, dog, emu, expected those of"));
}

// As many classes, but other ones: the numbers would shift.
TEST_F(DataTableTest, OtherClassesInTrainingThanInEvaluationAreRefused) {
  write_folder();
  std::filesystem::rename(folder_.path() / "train/dog", folder_.path() / "train/bee");
  auto folder = table("image-folder");
  folder.evaluation();
  EXPECT_THAT(message_of<EnvironmentError>([&] { folder.training(); }),
              AllOf(HasSubstr("got classes bee, cat, expected those of"), HasSubstr("cat, dog")));
}

TEST_F(DataTableTest, TarShardsAreShuffledByEpoch) {
  for (const char* part : {"train-0", "train-1", "test-0"}) {
    std::vector<std::pair<std::string, std::string>> files;
    for (int i = 0; i < 6; ++i) {
      const std::string key = std::string(part) + "-" + std::to_string(i);
      files.emplace_back(key + ".png", png_bytes(picture(40, 40, 3, i)));
      files.emplace_back(key + ".cls", std::to_string(i));
    }
    write(std::string(part) + ".tar", data::test::tar_bytes(files));
  }
  auto tar =
      table("tar", {{"image_size", int64_t{16}}, {"classes", int64_t{6}}, {"workers", int64_t{2}}});
  EXPECT_EQ(tar.evaluation()->samples(), 6);
  EXPECT_EQ(tar.example()[0].tensor().sizes(), (at::IntArrayRef{1, 3, 16, 16}));
  const auto training = tar.training();
  EXPECT_EQ(training->samples(), 12);
  EXPECT_FALSE(at::equal(first_of(*training, 0)[1].tensor(), first_of(*training, 1)[1].tensor()));
  auto few = table("tar", {{"image_size", int64_t{16}}, {"classes", int64_t{3}}});
  const auto evaluation = few.evaluation();
  EXPECT_THAT(message_of<Error>([&] { evaluation->next(); }),
              HasSubstr("got class 3, expected 0 to 2 (data.classes is 3)"));
}

TEST_F(DataTableTest, TablesOfNumbers) {
  write("train.csv", "a,b,kind\n1,2,0\n3,4,1\n5,6,2\n");
  write("test.csv", "a,b,kind\n1,2,2\n");
  auto csv = table(
      "csv", {{"target", std::string("kind")}, {"classes", int64_t{3}}, {"limit", int64_t{2}}});
  EXPECT_EQ(csv.evaluation()->samples(), 1);
  EXPECT_EQ(csv.example()[0].tensor().sizes(), (at::IntArrayRef{1, 2}));
  EXPECT_EQ(csv.training()->samples(), 2);
  auto few = table("csv", {{"target", std::string("kind")}});
  EXPECT_THAT(message_of<EnvironmentError>([&] { few.evaluation(); }),
              HasSubstr("column kind: got values out of range, expected classes from 0 to 1"));
  write("test.csv", "b,a,kind\n1,2,2\n");
  auto mixed = table("csv", {{"target", std::string("kind")}, {"classes", int64_t{3}}});
  mixed.evaluation();
  EXPECT_THAT(message_of<EnvironmentError>([&] { mixed.training(); }),
              AllOf(HasSubstr("train.csv: got columns a, b, kind, expected those of "),
                    HasSubstr("test.csv: b, a, kind, in that order")));
}

TEST_F(DataTableTest, SkippingLeavesOutDamagedImages) {
  write_folder();
  write("val/cat/2.png", png_bytes(picture(9, 9)).substr(0, 60));
  auto strict = table("image-folder", {{"image_size", int64_t{8}}});
  const auto raising = strict.evaluation();
  EXPECT_THAT(message_of<data::SampleError>([&] { raising->next(); }), HasSubstr("val/cat/2.png"));
  auto tolerant =
      table("image-folder", {{"image_size", int64_t{8}}, {"on_error", std::string("skip")}});
  const auto skipping = tolerant.evaluation();
  EXPECT_EQ(skipping->next()->samples, 3);
  EXPECT_EQ(skipping->report().skipped, 1);
}

TEST_F(DataTableTest, SettingsOutOfRangeAreRefusedByName) {
  const auto refused = [&](const std::string& name, const Setting& setting) {
    return message_of<ValueError>([&] { table(name, {setting}); });
  };
  EXPECT_THAT(refused("mnist", {"augment", std::vector<std::string>{"rotate"}}),
              HasSubstr("data.augment: got \"rotate\", expected some of crop, flip, jitter"));
  EXPECT_THAT(refused("cifar10", {"mean", std::vector<double>{1, 2}}),
              HasSubstr("data.mean: got 2 numbers, expected 1 or 3"));
  EXPECT_THAT(refused("cifar10", {"std", std::vector<double>{0}}), HasSubstr("data.std"));
  EXPECT_THAT(refused("tar", {"limit", int64_t{3}}), HasSubstr("data.limit: has no effect"));
  EXPECT_THAT(refused("cifar10", {"classes", int64_t{3}}), HasSubstr("classes"));
  EXPECT_THAT(refused("mnist", {"timeout", -1.0}), HasSubstr("data.timeout"));
  EXPECT_THAT(refused("fashion", {"workers", int64_t{0}}),
              HasSubstr("expected one of cifar10, cifar100, csv, fashion-mnist"));
}

}  // namespace
}  // namespace bellows::train
