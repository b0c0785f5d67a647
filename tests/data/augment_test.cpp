#include "bellows/data/augment.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <gmock/gmock.h>
#include <set>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/mix.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/data/transforms.h"
#include "bellows/device/normalize.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;

// Pixel (y, x) is 100 y + x.
at::Tensor places(int64_t height, int64_t width) {
  return at::arange(height, at::kFloat)
      .mul_(100)
      .unsqueeze(1)
      .add(at::arange(width, at::kFloat))
      .unsqueeze(0);
}

TEST(AugmentTest, DrawsDependOnTheRandomAlone) {
  const at::Tensor image =
      to_float(places(40, 50).remainder(256).to(at::kByte).expand({3, 40, 50}));
  const auto all =
      compose({random_crop(36, 36, 4), random_horizontal_flip(),
               colour_jitter({0.4, 0.4, 0.4, 0.1}), random_erasing(), random_resized_crop(16, 20)});
  const auto run = [&](int64_t index) {
    Random random(1, 2, index);
    return all(image, random);
  };
  EXPECT_EQ(run(0).sizes(), (at::IntArrayRef{3, 16, 20}));
  EXPECT_TRUE(at::equal(run(0), run(0)));
  EXPECT_FALSE(at::equal(run(0), run(1)));
}

TEST(AugmentTest, RandomCropReachesEveryPlaceAndNoOther) {
  const auto transform = random_crop(4, 4, 1, -1);
  std::set<std::pair<int64_t, int64_t>> seen;
  for (int64_t index = 0; index < 600; ++index) {
    Random random(0, 0, index);
    const at::Tensor part = transform(places(5, 6), random);
    ASSERT_EQ(part.sizes(), (at::IntArrayRef{1, 4, 4}));
    const auto middle = static_cast<int64_t>(part[0][1][1].item<float>());  // never padding
    seen.insert({middle / 100 - 1, middle % 100 - 1});
    EXPECT_TRUE(at::equal(part, crop(places(5, 6), middle / 100 - 1, middle % 100 - 1, 4, 4, -1)));
  }
  EXPECT_EQ(seen.size(), 4u * 5u);
  EXPECT_EQ(seen.begin()->first, -1);
}

TEST(AugmentTest, FlipComesWithItsProbability) {
  const auto flips = [](double probability) {
    int count = 0;
    for (int64_t index = 0; index < 1000; ++index) {
      Random random(0, 0, index);
      const at::Tensor image = random_horizontal_flip(probability)(places(1, 2), random);
      count += image[0][0][0].item<float>() == 1 ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(flips(0), 0);
  EXPECT_EQ(flips(1), 1000);
  EXPECT_NEAR(flips(0.3), 300, 5 * std::sqrt(210.0));
}

TEST(AugmentTest, ResizedCropsHaveTheAskedAreaAndProportion) {
  // Without resizing the part's corners are seen: a crop of constant gradient keeps its slope.
  const int64_t height = 80, width = 120;
  const at::Tensor image = places(height, width);
  double least_area = 1, most_area = 0;
  for (int64_t index = 0; index < 400; ++index) {
    Random random(3, 0, index);
    const at::Tensor part = random_resized_crop(64, 64)(image, random);
    ASSERT_EQ(part.sizes(), (at::IntArrayRef{1, 64, 64}));
    // The slope in the middle of the result tells the part's sides.
    const at::Tensor values = part[0].narrow(0, 16, 32).narrow(1, 16, 32);
    const double down = (values[31][0].item<float>() - values[0][0].item<float>()) / 31 / 100 * 64;
    const double across = (values[0][31].item<float>() - values[0][0].item<float>()) / 31 * 64;
    const double area = down * across / static_cast<double>(height * width);
    least_area = std::min(least_area, area);
    most_area = std::max(most_area, area);
    EXPECT_GT(across / down, 0.75 * 0.93);
    EXPECT_LT(across / down, 4.0 / 3 * 1.07);
  }
  EXPECT_GT(least_area, 0.07);
  EXPECT_LT(least_area, 0.12);
  EXPECT_LE(most_area, 1.02);
  EXPECT_GT(most_area, 0.8);
  Random random(0, 0, 0);
  EXPECT_EQ(random_resized_crop(8, 8)(places(1, 500), random).sizes(), (at::IntArrayRef{1, 8, 8}));
}

TEST(AugmentTest, ErasedRectanglesHaveTheAskedArea) {
  int erased = 0;
  for (int64_t index = 0; index < 400; ++index) {
    Random random(0, 0, index);
    const at::Tensor image = random_erasing({.value = 9})(at::zeros({2, 50, 60}), random);
    const double share = image[0].eq(9).sum().item<double>() / 3000;
    EXPECT_TRUE(at::equal(image[0], image[1]));
    if (share == 0) continue;
    ++erased;
    EXPECT_GT(share, 0.02 * 0.8);
    EXPECT_LT(share, 0.33 * 1.05);
  }
  EXPECT_NEAR(erased, 200, 5 * 10);
}

TEST(AugmentTest, JitterStaysWithinItsFactors) {
  const at::Tensor image = at::ones({3, 4, 4}).mul_(0.25);
  float least = 1, most = 0;
  for (int64_t index = 0; index < 300; ++index) {
    Random random(0, 0, index);
    const float value = colour_jitter({.brightness = 0.4})(image, random)[0][0][0].item<float>();
    least = std::min(least, value);
    most = std::max(most, value);
  }
  EXPECT_NEAR(least, 0.15, 0.005);
  EXPECT_NEAR(most, 0.35, 0.005);
  Random random(0, 0, 0);
  EXPECT_TRUE(at::equal(colour_jitter({})(image, random), image));
}

TEST(AugmentTest, TransformsArePutIntoDatasetsAndLoaders) {
  const auto images = std::make_shared<TensorDataset>(
      std::vector<at::Tensor>{places(6, 8).expand({12, 1, 6, 8}).contiguous(), at::arange(12)});
  const std::shared_ptr<const Dataset> cropped = map(images, on_image(random_crop(4, 4)));
  const auto order = std::make_shared<SequentialSampler>(12);
  std::vector<at::Tensor> first;
  for (const int64_t workers : {0, 2}) {
    const auto loader = make_loader(
        cropped, order,
        {.batch_size = 6,
         .workers = workers,
         .seed = 5,
         .on_batch = on_images([](const at::Tensor& batch, Random&) { return batch.mul(2); })});
    first.push_back(loader->next()->data[0].tensor());
    EXPECT_EQ(first.back().sizes(), (at::IntArrayRef{6, 1, 4, 4}));
    EXPECT_FALSE(at::equal(first.back()[0], first.back()[1]));
  }
  EXPECT_TRUE(at::equal(first[0], first[1]));
}

// A loader's first two epochs.
std::vector<at::Tensor> two_epochs(std::shared_ptr<const Dataset> dataset, int64_t workers,
                                   BatchTransform on_batch = nullptr) {
  const auto order = std::make_shared<RandomSampler>(dataset->size(), 2);
  const auto loader = make_loader(
      dataset, order,
      {.batch_size = 8, .workers = workers, .seed = 5, .on_batch = std::move(on_batch)});
  std::vector<at::Tensor> batches;
  for (const int64_t epoch : {0, 1}) {
    loader->start(epoch);
    while (auto batch = loader->next()) batches.push_back(batch->data[0].tensor());
  }
  return batches;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << "batch " << i;
}

TEST(AugmentTest, OnePassGivesWhatTheSamplesOneByOneGiveForAnyNumberOfWorkers) {
  const std::array mean{0.5F, 0.4F, 0.3F}, std{0.2F, 0.3F, 0.4F};
  const auto images = std::make_shared<TensorDataset>(
      std::vector<at::Tensor>{at::randint(256, {30, 3, 9, 7}, at::kByte), at::arange(30)});
  const auto single =
      map(images, on_image(compose({random_crop(8, 8, 2, 40), random_horizontal_flip(0.4)})));
  const auto expected = two_epochs(single, 0, on_images([&](const at::Tensor& batch, Random&) {
                                     return normalize(batch, mean, std);
                                   }));
  CropFlipOptions options{.height = 8,
                          .width = 8,
                          .padding = 2,
                          .fill = 40,
                          .flip_probability = 0.4,
                          .mean = {0.5, 0.4, 0.3},
                          .std = {0.2, 0.3, 0.4}};
  const auto whole = map_batches(images, random_crop_flip_normalize(options));
  for (const int64_t workers : {0, 1, 2, 8}) expect_equal(two_epochs(whole, workers), expected);
  options.type = at::kHalf;
  options.channels_last = true;
  const auto halves = two_epochs(map_batches(images, random_crop_flip_normalize(options)), 2);
  EXPECT_TRUE(halves[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::equal(halves[1], expected[1].to(at::kHalf)));
}

TEST(AugmentTest, OnePassWithoutACropDrawsForTheFlipAlone) {
  const auto images = std::make_shared<TensorDataset>(
      std::vector<at::Tensor>{at::randint(256, {30, 1, 5, 7}, at::kByte)});
  const auto to_numbers = on_images([](const at::Tensor& batch, Random&) {
    return normalize_channels(to_float(batch), std::array{0.25}, std::array{0.5});
  });
  const auto single = map(images, on_image(random_horizontal_flip()));
  const auto flipped = map_batches(
      images, random_crop_flip_normalize({.flip_probability = 0.5, .mean = {0.25}, .std = {0.5}}));
  expect_equal(two_epochs(flipped, 0), two_epochs(single, 0, to_numbers));
  const auto plain =
      map_batches(images, random_crop_flip_normalize({.mean = {0.25}, .std = {0.5}}));
  expect_equal(two_epochs(plain, 0), two_epochs(images, 0, to_numbers));
}

TEST(AugmentTest, OnePassRefusesWhatDoesNotFit) {
  EXPECT_THROW(random_crop_flip_normalize({.height = 4}), ValueError);
  EXPECT_THROW(random_crop_flip_normalize({.flip_probability = 2}), ValueError);
  EXPECT_THROW(random_crop_flip_normalize({.height = 4, .width = 4, .padding = -1}), ValueError);
  const auto images = std::make_shared<TensorDataset>(
      std::vector<at::Tensor>{at::randint(256, {3, 1, 5, 7}, at::kByte)});
  const auto large =
      map_batches(images, random_crop_flip_normalize({.height = 8, .width = 4, .padding = 1}));
  EXPECT_EQ(message_of<ValueError>([&] { large->get(0); }),
            "random_crop: got an image of 7 x 9 with its padding, expected at least 8 x 4");
}

TEST(AugmentTest, ALastBatchThatIsSmallerIsTransformedAsTheOthers) {
  const auto images = std::make_shared<TensorDataset>(
      std::vector<at::Tensor>{places(6, 8).expand({95, 1, 6, 8}).contiguous()});
  const auto to_eight =
      on_images([](const at::Tensor& batch, Random&) { return resize(batch, 8, 8); });
  for (const bool drop_last : {false, true}) {
    const auto loader =
        make_loader(images, std::make_shared<SequentialSampler>(95),
                    {.batch_size = 32, .drop_last = drop_last, .workers = 2, .on_batch = to_eight});
    std::vector<std::vector<int64_t>> shapes;
    while (const auto batch = loader->next())
      shapes.push_back(batch->data[0].tensor().sizes().vec());
    std::vector<std::vector<int64_t>> expected = {{32, 1, 8, 8}, {32, 1, 8, 8}, {31, 1, 8, 8}};
    if (drop_last) expected.pop_back();
    EXPECT_EQ(shapes, expected);
    EXPECT_EQ(std::ssize(shapes), loader->batches());
  }
}

TEST(AugmentTest, ArgumentsOutOfRangeAreRefusedAtOnce) {
  EXPECT_THROW(random_crop(0, 4), ValueError);
  EXPECT_THROW(random_crop(4, 4, -1), ValueError);
  EXPECT_THROW(random_horizontal_flip(1.5), ValueError);
  EXPECT_THROW(random_resized_crop(4, 4, {.least_scale = 0.5, .most_scale = 0.1}), ValueError);
  EXPECT_THROW(random_resized_crop(4, 4, {.least_ratio = 0}), ValueError);
  EXPECT_THROW(colour_jitter({.hue = 0.6}), ValueError);
  EXPECT_THROW(colour_jitter({.contrast = -1}), ValueError);
  EXPECT_THROW(random_erasing({.probability = -1}), ValueError);
  Random random(0, 0, 0);
  EXPECT_EQ(message_of<ValueError>([&] { random_crop(9, 4, 1)(places(6, 8), random); }),
            "random_crop: got an image of 8 x 10 with its padding, expected at least 9 x 4");
}

TEST(MixTest, MixupAddsEachSampleAndItsNeighbourByWeight) {
  const at::Tensor images = at::arange(3, at::kFloat).view({3, 1, 1, 1});
  const Mixed mixed = mixup(images, at::arange(3), 0.75, 4);
  EXPECT_FLOAT_EQ(mixed.images[0].item<float>(), 0.25F * 2);
  EXPECT_FLOAT_EQ(mixed.images[2].item<float>(), 0.75F * 2 + 0.25F * 1);
  EXPECT_FLOAT_EQ(mixed.targets[2][2].item<float>(), 0.75F);
  EXPECT_FLOAT_EQ(mixed.targets[2][1].item<float>(), 0.25F);
  EXPECT_FLOAT_EQ(mixed.targets.sum().item<float>(), 3);
  EXPECT_THROW(mixup(images, at::arange(3), 1.5, 4), ValueError);
  EXPECT_THROW(mixup(images.to(at::kByte), at::arange(3), 0.5, 4), ValueError);
  EXPECT_THROW(mixup(images, at::arange(2), 0.5, 4), ValueError);
  EXPECT_THROW(mixup(images, at::arange(3), 0.5, 0), ValueError);
  EXPECT_EQ(test::message_of<ValueError>([&] { mixup(images, at::arange(-1, 2), 0.5, 4); }),
            "mixup: got class -1, expected 0 to 3");
  EXPECT_EQ(test::message_of<ValueError>([&] { mixup(images, at::arange(2, 5), 0.5, 4); }),
            "mixup: got class 4, expected 0 to 3");
  EXPECT_THROW(cutmix(at::ones({3, 1, 2, 2}), at::arange(3), 0, 0, 1, 1, 2), ValueError);
}

TEST(MixTest, CutmixTakesTheRectangleFromTheNeighbourAndItsShareOfTheTarget) {
  const at::Tensor images = at::arange(2).view({2, 1, 1, 1}).expand({2, 3, 4, 5}).contiguous();
  const Mixed mixed = cutmix(images, at::arange(2), 1, 2, 3, 5, 2);
  EXPECT_EQ(mixed.images.scalar_type(), at::kLong);
  EXPECT_EQ(mixed.images[0].sum().item<int64_t>(), 3 * 2 * 3);
  EXPECT_EQ(mixed.images[0][1][1][2].item<int64_t>(), 1);
  EXPECT_EQ(mixed.images[1].sum().item<int64_t>(), 3 * (20 - 6));
  EXPECT_FLOAT_EQ(mixed.targets[0][0].item<float>(), 0.7F);
  EXPECT_FLOAT_EQ(mixed.targets[0][1].item<float>(), 0.3F);
  EXPECT_THROW(cutmix(images, at::arange(2), 1, 2, 5, 5, 2), ValueError);
}

TEST(MixTest, RandomMixesHaveTheWeightsOfTheirDistribution) {
  const at::Tensor images = at::arange(2, at::kFloat).view({2, 1, 1, 1}).expand({2, 1, 32, 32});
  for (const auto& transform : {random_mixup(2, 0.4), random_cutmix(2, 0.4)}) {
    double sum = 0;
    for (int64_t index = 0; index < 400; ++index) {
      Random random(0, 0, index);
      const Tree batch = transform(Tree::List{images.contiguous(), at::arange(2)}, random);
      const double weight = batch[1].tensor()[1][1].item<double>();
      EXPECT_NEAR(batch[0].tensor()[1].mean().item<double>(), weight, 1e-5);
      sum += weight;
    }
    EXPECT_GT(sum / 400, 0.4);
    EXPECT_LT(sum / 400, 0.75);
  }
  EXPECT_THROW(random_mixup(2, 0), ValueError);
}

TEST(MixTest, BetaHasItsMeanAndVariance) {
  for (const auto& [a, b] : {std::pair{0.3, 0.3}, {1.0, 1.0}, {2.0, 5.0}}) {
    constexpr int kDraws = 50'000;
    Random random(1, 1, 1);
    double sum = 0, squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double value = draw_beta(a, b, random);
      ASSERT_GE(value, 0);
      ASSERT_LE(value, 1);
      sum += value;
      squares += value * value;
    }
    const double mean = a / (a + b), variance = a * b / ((a + b) * (a + b) * (a + b + 1));
    EXPECT_NEAR(sum / kDraws, mean, 5 * std::sqrt(variance / kDraws));
    EXPECT_NEAR(squares / kDraws - mean * mean, variance, 0.01);
  }
}

}  // namespace
}  // namespace bellows::data
