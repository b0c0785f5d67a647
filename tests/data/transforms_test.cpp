// What the transforms are worth on images is checked against torchvision in
// tests/python/image_transforms.py; here stand laws and errors.
#include "bellows/data/transforms.h"

#include <array>
#include <gmock/gmock.h>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/device/normalize.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;

at::Tensor bytes(int64_t images = 0) {
  const int64_t count = std::max<int64_t>(images, 1);
  const at::Tensor all = at::arange(count * 3 * 9 * 7).mul_(37).remainder_(256).to(at::kByte);
  return images == 0 ? all.view({3, 9, 7}) : all.view({images, 3, 9, 7});
}

// Every transform, on images as they are.
std::vector<at::Tensor> all_of(const at::Tensor& image) {
  return {resize(image, 5, 12),
          resize_shorter(image, 4),
          crop(image, 2, 1, 4, 3),
          crop(image, -2, 3, 6, 8),
          center_crop(image, 12, 4),
          flip_horizontal(image),
          erase(image, 1, 1, 3, 4, 7),
          to_grey(image),
          adjust_brightness(image, 1.3),
          adjust_contrast(image, 0.6),
          adjust_saturation(image, 1.6),
          adjust_hue(image, 0.2),
          to_float(image)};
}

TEST(TransformsTest, ABatchIsItsImagesEachForItself) {
  for (const auto type : {at::kByte, at::kFloat}) {
    at::Tensor batch = bytes(4);
    if (type == at::kFloat) batch = to_float(batch);
    const auto of_batch = all_of(batch);
    for (int64_t i = 0; i < 4; ++i) {
      const auto of_image = all_of(batch[i]);
      for (size_t t = 0; t < of_image.size(); ++t)
        EXPECT_TRUE(at::allclose(of_batch[t][i], of_image[t], 1e-6, 1e-6)) << t << " " << type;
    }
  }
}

TEST(TransformsTest, ArgumentsAndMemoryLayoutsDoNotMatter) {
  const at::Tensor image = bytes();
  const at::Tensor before = image.clone();
  const at::Tensor interleaved =
      image.permute({1, 2, 0}).contiguous().permute({2, 0, 1});  // as images are decoded
  const auto expected = all_of(image);
  const auto got = all_of(interleaved);
  for (size_t t = 0; t < got.size(); ++t) EXPECT_TRUE(at::equal(got[t], expected[t])) << t;
  EXPECT_TRUE(at::equal(image, before)) << "the argument stays as it is";
}

TEST(TransformsTest, ToFloatAndNormalizeAreTheOnePassOfBytes) {
  const std::array<float, 3> mean = {0.5F, 0.25F, 0.125F}, std = {0.5F, 0.25F, 2.0F};
  const std::array<double, 3> means = {0.5, 0.25, 0.125}, stds = {0.5, 0.25, 2};
  const at::Tensor image = bytes(2);
  EXPECT_TRUE(
      at::equal(normalize_channels(to_float(image), means, stds), normalize(image, mean, std)));
  EXPECT_TRUE(at::equal(normalize_channels(to_float(image), std::array{0.5}, std::array{0.5}),
                        to_float(image).sub(0.5).div(0.5)));
}

TEST(TransformsTest, NeutralArgumentsLeaveTheImage) {
  const at::Tensor image = bytes();
  EXPECT_TRUE(at::equal(resize(image, 9, 7), image));
  EXPECT_TRUE(at::equal(crop(image, 0, 0, 9, 7), image));
  EXPECT_TRUE(at::equal(flip_horizontal(flip_horizontal(image)), image));
  EXPECT_TRUE(at::equal(adjust_brightness(image, 1), image));
  EXPECT_TRUE(at::equal(adjust_contrast(image, 1), image));
  EXPECT_TRUE(at::equal(adjust_saturation(image, 1), image));
  EXPECT_TRUE(at::equal(adjust_hue(image, 0), image));
}

TEST(TransformsTest, CropOutsideOfTheImageIsFilled) {
  const at::Tensor image = at::ones({1, 2, 2});
  EXPECT_EQ(crop(image, -1, -1, 4, 4, 5).sum().item<float>(), 4 + 12 * 5);
  EXPECT_EQ(crop(image, 10, 0, 2, 2, 5).sum().item<float>(), 20);
  EXPECT_EQ(crop(image, -10, 0, 2, 2, 5).sum().item<float>(), 20);
}

TEST(TransformsTest, OtherTypesAndHalfPrecisionAreTakenWhereTheyCan) {
  const at::Tensor half = to_float(bytes(), at::kHalf);
  EXPECT_EQ(resize(half, 4, 4).scalar_type(), at::kHalf);
  EXPECT_EQ(adjust_contrast(half, 0.5).scalar_type(), at::kHalf);
  EXPECT_EQ(resize(to_float(bytes(), at::kDouble), 4, 4).scalar_type(), at::kDouble);
}

TEST(TransformsTest, WhatIsNoImageIsRefused) {
  EXPECT_EQ(message_of<ValueError>([] {
              flip_horizontal(at::ones({2, 2}));
            }),
            "flip: got Float of shape [2, 2], expected uint8 or floating point of shape [..., "
            "channels, height, width]");
  EXPECT_THAT(message_of<ValueError>([] {
                resize(at::ones({3, 2, 2}, at::kInt), 1, 1);
              }),
              HasSubstr("got Int"));
  EXPECT_THROW(to_float(at::Tensor()), ValueError);
  EXPECT_THROW(to_float(bytes(), at::kInt), ValueError);
  EXPECT_THROW(resize(bytes(), 0, 3), ValueError);
  EXPECT_THROW(resize(at::zeros({3, 0, 2}), 3, 3), ValueError);
  EXPECT_THROW(crop(bytes(), 0, 0, 1, -1), ValueError);
  EXPECT_THROW(center_crop(bytes(), 0, 1), ValueError);
  EXPECT_EQ(message_of<ValueError>([] { erase(bytes(), 5, 0, 5, 2); }),
            "erase: got rows 5 to 10 and columns 0 to 2, expected a part of 9 x 7");
  EXPECT_THROW(adjust_brightness(bytes(), -0.1), ValueError);
  EXPECT_EQ(message_of<ValueError>([] { adjust_hue(bytes(), 0.6); }),
            "adjust_hue: got 0.6, expected -0.5 to 0.5");
  EXPECT_EQ(message_of<ValueError>([] {
              adjust_contrast(at::ones({2, 3, 3}), 1);
            }),
            "adjust_contrast: got 2 channels, expected 1 or 3");
  const std::array<double, 2> two = {1, 1};
  EXPECT_THAT(message_of<ValueError>([&] {
                normalize_channels(at::ones({3, 2, 2}), two, two);
              }),
              HasSubstr("got 2 means, expected 1 or 3"));
  EXPECT_THROW(normalize_channels(bytes(), std::array{0.5}, std::array{0.5}), ValueError);
  EXPECT_THROW(normalize_channels(at::ones({3, 2, 2}), std::array{0.5}, std::array{0.0}),
               ValueError);
}

}  // namespace
}  // namespace bellows::data
