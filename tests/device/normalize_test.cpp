#include "bellows/device/normalize.h"

#include <array>
#include <cmath>
#include <gmock/gmock.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::array<float, 3> kMean{0.485F, 0.456F, 0.406F};
constexpr std::array<float, 3> kStd{0.229F, 0.224F, 0.225F};

// Every byte value in every channel: [3, 16, 16].
at::Tensor all_bytes() {
  return at::arange(256, at::kByte).view({1, 16, 16}).repeat({3, 1, 1});
}

TEST(NormalizeTest, EveryByteOfEveryChannelIsRight) {
  const at::Tensor out = normalize(all_bytes(), kMean, kStd);
  ASSERT_EQ(out.scalar_type(), at::kFloat);
  const auto values = out.accessor<float, 3>();
  for (int c = 0; c < 3; ++c) {
    for (int byte = 0; byte < 256; ++byte) {
      const double expected = (byte / 255.0 - double{kMean[c]}) / double{kStd[c]};
      ASSERT_NEAR(values[c][byte / 16][byte % 16], expected, 4e-7 * (1 + std::abs(expected)))
          << c << " " << byte;
    }
  }
}

TEST(NormalizeTest, TheBitsAreThoseOfSeparateOperators) {
  const at::Tensor images = at::randint(256, {2, 3, 5, 7}, at::kByte);
  const at::Tensor mean = at::tensor(at::ArrayRef<float>(kMean)).view({3, 1, 1});
  const at::Tensor std = at::tensor(at::ArrayRef<float>(kStd)).view({3, 1, 1});
  EXPECT_TRUE(
      at::equal(normalize(images, kMean, kStd), images.to(at::kFloat).div(255).sub(mean).div(std)));
}

TEST(NormalizeTest, ChannelsLastIsTheSamePermuted) {
  const at::Tensor images = at::randint(256, {2, 3, 5, 7}, at::kByte);
  const at::Tensor last = normalize(images.permute({0, 2, 3, 1}), kMean, kStd, ChannelDim::last);
  EXPECT_EQ(last.sizes(), (at::IntArrayRef{2, 5, 7, 3}));
  EXPECT_TRUE(last.is_contiguous());
  EXPECT_TRUE(at::equal(last.permute({0, 3, 1, 2}), normalize(images, kMean, kStd)));
}

TEST(NormalizeTest, ABatchIsItsImages) {
  const at::Tensor images = at::randint(256, {4, 3, 2, 2}, at::kByte);
  const at::Tensor out = normalize(images, kMean, kStd);
  for (int n = 0; n < 4; ++n) EXPECT_TRUE(at::equal(out[n], normalize(images[n], kMean, kStd)));
}

TEST(NormalizeTest, AnEmptyBatchIsEmpty) {
  EXPECT_EQ(normalize(at::empty({0, 3, 4, 4}, at::kByte), kMean, kStd).sizes(),
            (at::IntArrayRef{0, 3, 4, 4}));
}

std::string message_of(const at::Tensor& images, std::span<const float> mean,
                       std::span<const float> std) {
  try {
    normalize(images, mean, std);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(NormalizeTest, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(message_of(at::empty({3, 4, 4}), kMean, kStd),
              AllOf(HasSubstr("Float"), HasSubstr("expected uint8")));
  EXPECT_THAT(message_of(at::empty({4, 4}, at::kByte), kMean, kStd), HasSubstr("[4, 4]"));
  EXPECT_THAT(message_of(at::Tensor(), kMean, kStd), HasSubstr("undefined"));
  EXPECT_THAT(message_of(at::empty({1, 4, 4}, at::kByte), kMean, kStd),
              AllOf(HasSubstr("3 means"), HasSubstr("images of 1 channels")));
  EXPECT_THAT(message_of(all_bytes(), kMean, std::array{1.0F, 0.0F, 1.0F}),
              HasSubstr("standard deviation of 0"));
  EXPECT_THAT(message_of(all_bytes().to(c10::Device(c10::kMeta)), kMean, kStd),
              HasSubstr("on meta"));
}

}  // namespace
}  // namespace bellows
