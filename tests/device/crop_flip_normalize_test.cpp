#include "bellows/device/crop_flip_normalize.h"

#include <algorithm>
#include <array>
#include <gmock/gmock.h>
#include <limits>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/device/cuda/crop_flip_normalize_element.h"
#include "bellows/device/normalize.h"

namespace bellows {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::array kMean{0.485F, 0.456F, 0.406F, 0.1F, 0.2F};
constexpr std::array kStd{0.229F, 0.224F, 0.225F, 2.0F, 0.7F};

std::span<const float> some(const std::array<float, 5>& values, int64_t channels) {
  return std::span(values).first(static_cast<size_t>(channels));
}

at::Tensor column(const std::array<float, 5>& values, int64_t channels) {
  const auto part = some(values, channels);
  return at::tensor(at::ArrayRef<float>(part.data(), part.size())).view({channels, 1, 1});
}

// Plain operators, one after the other: surround with the fill value (so far that windows farther
// away see nothing else), cut out, flip, convert.
at::Tensor composed(const at::Tensor& images, std::span<const CropWindow> windows,
                    const CropFlipNormalizeOptions& options) {
  const int64_t channels = images.size(3);
  std::vector<at::Tensor> results;
  for (int64_t n = 0; n < images.size(0); ++n) {
    const CropWindow& window = windows[static_cast<size_t>(n)];
    const at::Tensor image = images[n].permute({2, 0, 1});
    const int64_t h = image.size(1), w = image.size(2);
    const int64_t above = options.height + h, before = options.width + w;
    const at::Tensor around =
        at::full({channels, h + 2 * above + options.height, w + 2 * before + options.width},
                 options.fill, at::kByte);
    around.narrow(1, above, h).narrow(2, before, w).copy_(image);
    const auto at_most = [](int64_t place, int64_t limit) {
      return std::clamp<int64_t>(place, -limit, limit);
    };
    at::Tensor part = around.narrow(1, at_most(window.top, above) + above, options.height)
                          .narrow(2, at_most(window.left, before) + before, options.width);
    if (window.flip) part = part.flip(-1);
    results.push_back(part.to(at::kFloat)
                          .div(255)
                          .sub(column(kMean, channels))
                          .div(column(kStd, channels))
                          .to(options.type));
  }
  return at::stack(results);
}

// Inside, over each edge and corner, wholly outside on each side, and as far as numbers go.
std::vector<CropWindow> windows_for(int32_t h, int32_t w) {
  std::vector<CropWindow> windows;
  constexpr int32_t kFar = std::numeric_limits<int32_t>::max();
  for (const int32_t top : {0, 1, -2, h - 1, h, -h, -50}) {
    for (const int32_t left : {0, 2, -1, w - 2, w, -w, -50}) {
      windows.push_back({top, left, false});
      windows.push_back({top, left, true});
    }
  }
  for (const auto& [top, left] : {std::pair{kFar, 0}, {-kFar, 0}, {0, kFar}, {0, -kFar - 1}})
    windows.push_back({top, left, true});
  return windows;
}

struct Case {
  int64_t channels, in_height, in_width, height, width;
};

// Called with a batch of every case, type and order of channels.
template <class Check>
void for_all_cases(Check check) {
  for (const Case& c : {Case{3, 8, 9, 5, 4},
                        {1, 7, 5, 7, 5},
                        {3, 5, 3, 9, 11},
                        {4, 6, 6, 3, 1},
                        {5, 3, 4, 1, 6},
                        {2, 1, 1, 2, 2}}) {
    const auto windows =
        windows_for(static_cast<int32_t>(c.in_height), static_cast<int32_t>(c.in_width));
    const at::Tensor interleaved =
        at::randint(256, {std::ssize(windows), c.in_height, c.in_width, c.channels}, at::kByte);
    const at::Tensor planes = interleaved.permute({0, 3, 1, 2}).contiguous().permute({0, 2, 3, 1});
    for (const at::Tensor& images : {interleaved, planes}) {
      for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
        for (const bool last : {false, true}) {
          SCOPED_TRACE(testing::Message() << c.channels << " channels, " << c.in_height << " x "
                                          << c.in_width << " to " << c.height << " x " << c.width
                                          << ", " << type << (last ? ", channels last" : ""));
          check(images, windows,
                CropFlipNormalizeOptions{.height = c.height,
                                         .width = c.width,
                                         .fill = 37,
                                         .type = type,
                                         .channels_last = last});
        }
      }
    }
  }
}

at::Tensor cropped(const at::Tensor& images, std::span<const CropWindow> windows,
                   const CropFlipNormalizeOptions& options) {
  return crop_flip_normalize(images, windows, some(kMean, images.size(3)),
                             some(kStd, images.size(3)), options);
}

TEST(CropFlipNormalizeTest, TheBitsAreThoseOfPlainOperators) {
  for_all_cases([](const at::Tensor& images, std::span<const CropWindow> windows,
                   const CropFlipNormalizeOptions& options) {
    const at::Tensor out = cropped(images, windows, options);
    ASSERT_EQ(out.scalar_type(), options.type);
    ASSERT_TRUE(out.is_contiguous(options.channels_last ? at::MemoryFormat::ChannelsLast
                                                        : at::MemoryFormat::Contiguous));
    ASSERT_TRUE(at::equal(out, composed(images, windows, options)));
  });
}

// What each thread of the CUDA kernel does, in a loop.
template <class T>
void run_as_the_kernel(const at::Tensor& images, std::span<const CropWindow> windows,
                       const CropShape& shape, T* to) {
  NormalizeStatistics statistics{};
  std::ranges::copy(some(kMean, shape.channels), statistics.mean);
  std::ranges::copy(some(kStd, shape.channels), statistics.std);
  const int32_t values = shape.channels * shape.height * shape.width;
  for (int64_t n = 0; n < shape.images; ++n) {
    for (int32_t i = 0; i < values; ++i) {
      *to++ = static_cast<T>(
          crop_flip_normalize_element(images.const_data_ptr<uint8_t>() + n * shape.image_stride,
                                      shape, windows[static_cast<size_t>(n)], statistics, i));
    }
  }
}

TEST(CropFlipNormalizeTest, EachElementOfTheKernelIsThatOfTheCpu) {
  for_all_cases([](const at::Tensor& images, std::span<const CropWindow> windows,
                   const CropFlipNormalizeOptions& options) {
    const at::Tensor expected = cropped(images, windows, options);
    const at::Tensor out = at::empty_like(expected);
    const CropShape shape{.image_stride = images.stride(0),
                          .row_stride = images.stride(1),
                          .column_stride = images.stride(2),
                          .channel_stride = images.stride(3),
                          .in_height = images.size(1),
                          .in_width = images.size(2),
                          .images = images.size(0),
                          .channels = static_cast<int32_t>(images.size(3)),
                          .height = static_cast<int32_t>(options.height),
                          .width = static_cast<int32_t>(options.width),
                          .channels_last = options.channels_last,
                          .fill = options.fill};
    if (options.type == at::kFloat)
      run_as_the_kernel(images, windows, shape, out.mutable_data_ptr<float>());
    if (options.type == at::kHalf)
      run_as_the_kernel(images, windows, shape, out.mutable_data_ptr<at::Half>());
    if (options.type == at::kBFloat16)
      run_as_the_kernel(images, windows, shape, out.mutable_data_ptr<at::BFloat16>());
    ASSERT_TRUE(at::equal(out, expected));
  });
}

TEST(CropFlipNormalizeTest, TheWholeImageIsNormalize) {
  const at::Tensor images = at::randint(256, {2, 3, 16, 16}, at::kByte);
  const at::Tensor out = cropped(images.permute({0, 2, 3, 1}), std::vector<CropWindow>(2),
                                 {.height = 16, .width = 16});
  EXPECT_TRUE(at::equal(out, normalize(images, some(kMean, 3), some(kStd, 3))));
}

TEST(CropFlipNormalizeTest, AnyStridesAreRead) {
  const at::Tensor big = at::randint(256, {6, 9, 20, 4}, at::kByte);
  const at::Tensor images = big.slice(0, 1, 6, 2).slice(2, 3, 19, 2).slice(3, 1, 4);
  const std::vector<CropWindow> windows = {{-1, 2, true}, {0, -3, false}, {4, 4, true}};
  const CropFlipNormalizeOptions options{.height = 7, .width = 6};
  EXPECT_TRUE(
      at::equal(cropped(images, windows, options), cropped(images.contiguous(), windows, options)));
}

TEST(CropFlipNormalizeTest, NoImagesAreNone) {
  EXPECT_EQ(cropped(at::empty({0, 4, 4, 3}, at::kByte), {}, {.height = 2, .width = 5}).sizes(),
            (at::IntArrayRef{0, 3, 2, 5}));
}

std::string message_of(const at::Tensor& images, size_t windows,
                       const CropFlipNormalizeOptions& options, std::span<const float> std) {
  try {
    crop_flip_normalize(images, std::vector<CropWindow>(windows), some(kMean, 3), std, options);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CropFlipNormalizeTest, WhatDoesNotFitIsNamed) {
  const at::Tensor images = at::empty({2, 4, 4, 3}, at::kByte);
  const CropFlipNormalizeOptions options{.height = 4, .width = 4};
  const auto std = some(kStd, 3);
  EXPECT_EQ(message_of(images, 2, options, std), "no error");
  EXPECT_THAT(message_of(images.to(at::kFloat), 2, options, std),
              AllOf(HasSubstr("got Float of shape [2, 4, 4, 3]"), HasSubstr("expected uint8")));
  EXPECT_THAT(message_of(images[0], 2, options, std), HasSubstr("[4, 4, 3]"));
  EXPECT_THAT(message_of(at::Tensor(), 2, options, std), HasSubstr("undefined"));
  EXPECT_THAT(message_of(images, 3, options, std), HasSubstr("got 3 windows for 2 images"));
  EXPECT_THAT(message_of(images, 2, options, some(kStd, 2)),
              HasSubstr("got 3 means and 2 standard deviations for images of 3 channels"));
  EXPECT_THAT(message_of(images, 2, options, std::array{1.0F, 0.0F, 1.0F}),
              HasSubstr("standard deviation of 0"));
  EXPECT_THAT(message_of(images, 2, {.height = 0, .width = 4}, std),
              HasSubstr("got windows of 0 x 4 with 3 channels"));
  EXPECT_THAT(message_of(images, 2, {.height = 1 << 16, .width = 1 << 16}, std),
              HasSubstr("less than 2^31 values"));
  EXPECT_THAT(message_of(images, 2, {.height = 4, .width = 4, .type = at::kDouble}, std),
              HasSubstr("got type Double, expected Float, Half or BFloat16"));
  EXPECT_THAT(message_of(images.to(c10::Device(c10::kMeta)), 2, options, std),
              HasSubstr("got images on meta, expected cpu, cuda or sim"));
}

std::string out_message_of(const at::Tensor& out) {
  try {
    crop_flip_normalize_out(at::empty({2, 4, 4, 3}, at::kByte), std::vector<CropWindow>(2),
                            some(kMean, 3), some(kStd, 3), 0, out);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CropFlipNormalizeTest, AnOutputThatDoesNotFitIsNamed) {
  EXPECT_EQ(out_message_of(at::empty({2, 3, 7, 5})), "no error");
  EXPECT_THAT(out_message_of(at::empty({3, 3, 7, 5})),
              AllOf(HasSubstr("Float of shape [3, 3, 7, 5] on cpu"),
                    HasSubstr("expected shape [2, 3, height, width] on cpu")));
  EXPECT_THAT(out_message_of(at::Tensor()), HasSubstr("an undefined tensor"));
  EXPECT_THAT(out_message_of(at::empty({2, 3, 7, 5}, at::kLong)), HasSubstr("got type Long"));
  EXPECT_THAT(out_message_of(at::empty({2, 3, 7, 10}).slice(3, 0, 10, 2)),
              HasSubstr("strides [210, 70, 10, 2], expected a dense one"));
}

}  // namespace
}  // namespace bellows
