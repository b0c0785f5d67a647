#include "bellows/data/augment.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/image_check.h"
#include "bellows/data/transforms.h"
#include "bellows/device/crop_flip_normalize.h"

namespace bellows::data {
namespace {

void check_range(const char* what, double value, double low, double high) {
  if (value >= low && value <= high) return;
  throw ValueError(concat(what, ": got ", value, ", expected ", low, " to ", high));
}

void check_ordered(const char* what, double low, double high) {
  if (low > 0 && low <= high && std::isfinite(high)) return;
  throw ValueError(
      concat(what, ": got ", low, " to ", high, ", expected numbers above 0 in rising order"));
}

void check_size(const char* what, int64_t height, int64_t width) {
  if (height >= 1 && width >= 1) return;
  throw ValueError(concat(what, ": got a size of ", height, " x ", width, ", expected 1 or more"));
}

struct Region {
  int64_t top, left, height, width;
};

int64_t rounded(double value) {
  return static_cast<int64_t>(std::nearbyint(value));
}

void check_crop(int64_t height, int64_t width, int64_t padding) {
  check_size("random_crop", height, width);
  if (padding < 0)
    throw ValueError(concat("random_crop: got padding ", padding, ", expected 0 or more"));
}

Region draw_crop(const at::Tensor& image, int64_t height, int64_t width, int64_t padding,
                 Random& random) {
  const int64_t rows = image.size(-2) + 2 * padding, columns = image.size(-1) + 2 * padding;
  if (rows < height || columns < width) {
    throw ValueError(concat("random_crop: got an image of ", rows, " x ", columns,
                            " with its padding, expected at least ", height, " x ", width));
  }
  const int64_t top = random.below(rows - height + 1) - padding;
  const int64_t left = random.below(columns - width + 1) - padding;
  return {top, left, height, width};
}

// Sides of a rectangle of random area and proportion, first / second = proportion.
std::pair<int64_t, int64_t> draw_sides(double area, double least_ratio, double most_ratio,
                                       Random& random) {
  const double ratio = std::exp(random.uniform(std::log(least_ratio), std::log(most_ratio)));
  return {rounded(std::sqrt(area * ratio)), rounded(std::sqrt(area / ratio))};
}

// One number for each channel, or one for all.
std::vector<float> for_each(const std::vector<double>& values, int64_t channels) {
  std::vector<float> result(values.begin(), values.end());
  if (result.size() == 1) result.resize(static_cast<size_t>(channels), result[0]);
  return result;
}

constexpr int kDraws = 10;

Region draw_resized_crop(int64_t height, int64_t width, const ResizedCropOptions& options,
                         Random& random) {
  const auto area = static_cast<double>(height * width);
  for (int draw = 0; draw < kDraws; ++draw) {
    const double part = area * random.uniform(options.least_scale, options.most_scale);
    const auto [w, h] = draw_sides(part, options.least_ratio, options.most_ratio, random);
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const int64_t top = random.below(height - h + 1);
    return {top, random.below(width - w + 1), h, w};
  }
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  int64_t h = height, w = width;
  if (ratio < options.least_ratio) h = rounded(static_cast<double>(w) / options.least_ratio);
  if (ratio > options.most_ratio) w = rounded(static_cast<double>(h) * options.most_ratio);
  return {(height - h) / 2, (width - w) / 2, h, w};
}

std::optional<Region> draw_erased(int64_t height, int64_t width, const ErasingOptions& options,
                                  Random& random) {
  const auto area = static_cast<double>(height * width);
  for (int draw = 0; draw < kDraws; ++draw) {
    const double part = area * random.uniform(options.least_scale, options.most_scale);
    const auto [h, w] = draw_sides(part, options.least_ratio, options.most_ratio, random);
    if (h >= height || w >= width) continue;
    const int64_t top = random.below(height - h + 1);
    return Region{top, random.below(width - w + 1), h, w};
  }
  return std::nullopt;
}

}  // namespace

ImageTransform compose(std::vector<ImageTransform> transforms) {
  return [transforms = std::move(transforms)](const at::Tensor& image, Random& random) {
    at::Tensor result = image;
    for (const auto& transform : transforms) result = transform(result, random);
    return result;
  };
}

SampleTransform on_image(ImageTransform transform) {
  return [transform = std::move(transform)](Tree sample, Random& random) {
    Tree& image = sample.list().at(0);
    image = transform(image.tensor(), random);
    return sample;
  };
}

BatchTransform on_images(ImageTransform transform) {
  return on_image(std::move(transform));
}

ImageTransform random_crop(int64_t height, int64_t width, int64_t padding, double fill) {
  check_crop(height, width, padding);
  return [=](const at::Tensor& image, Random& random) {
    check_image("random_crop", image);
    const Region part = draw_crop(image, height, width, padding, random);
    return crop(image, part.top, part.left, height, width, fill);
  };
}

ImageTransform random_horizontal_flip(double probability) {
  check_range("random_horizontal_flip", probability, 0, 1);
  return [=](const at::Tensor& image, Random& random) {
    return random.chance(probability) ? flip_horizontal(image) : image;
  };
}

BatchMap random_crop_flip_normalize(CropFlipOptions options) {
  const bool crops = options.height != 0 || options.width != 0;
  if (crops) check_crop(options.height, options.width, options.padding);
  check_range("random_crop_flip_normalize: flip", options.flip_probability, 0, 1);
  return [crops, options = std::move(options)](Tree batch, std::span<Random> randoms,
                                               BatchMemory& memory) {
    Tree& entry = batch.list().at(0);
    const at::Tensor images = entry.tensor();
    check_image("random_crop_flip_normalize", images);
    const int64_t height = crops ? options.height : images.size(-2);
    const int64_t width = crops ? options.width : images.size(-1);
    std::vector<CropWindow> windows;
    windows.reserve(randoms.size());
    for (Random& random : randoms) {
      CropWindow window;
      if (crops) {
        const Region part = draw_crop(images, height, width, options.padding, random);
        window.top = static_cast<int32_t>(part.top);
        window.left = static_cast<int32_t>(part.left);
      }
      window.flip = options.flip_probability > 0 && random.chance(options.flip_probability);
      windows.push_back(window);
    }
    const int64_t channels = images.size(-3);
    const at::Tensor out =
        options.channels_last
            ? memory.empty({images.size(0), height, width, channels}, options.type)
                  .permute({0, 3, 1, 2})
            : memory.empty({images.size(0), channels, height, width}, options.type);
    crop_flip_normalize_out(images.movedim(-3, -1), windows, for_each(options.mean, channels),
                            for_each(options.std, channels), options.fill, out);
    entry = out;
    return batch;
  };
}

ImageTransform random_resized_crop(int64_t height, int64_t width, ResizedCropOptions options) {
  check_size("random_resized_crop", height, width);
  check_ordered("random_resized_crop: scale", options.least_scale, options.most_scale);
  check_ordered("random_resized_crop: ratio", options.least_ratio, options.most_ratio);
  return [=](const at::Tensor& image, Random& random) {
    check_image("random_resized_crop", image);
    const Region part = draw_resized_crop(image.size(-2), image.size(-1), options, random);
    return resize(crop(image, part.top, part.left, part.height, part.width), height, width);
  };
}

ImageTransform colour_jitter(ColourJitterOptions options) {
  check_range("colour_jitter: brightness", options.brightness, 0, HUGE_VAL);
  check_range("colour_jitter: contrast", options.contrast, 0, HUGE_VAL);
  check_range("colour_jitter: saturation", options.saturation, 0, HUGE_VAL);
  check_range("colour_jitter: hue", options.hue, 0, 0.5);
  return [=](const at::Tensor& image, Random& random) {
    std::array<int, 4> order = {0, 1, 2, 3};
    for (int64_t left = 4; left > 1; --left)
      std::swap(order.at(static_cast<size_t>(left - 1)),
                order.at(static_cast<size_t>(random.below(left))));
    const auto factor = [&](double spread) {
      return random.uniform(std::max(0.0, 1 - spread), 1 + spread);
    };
    const double brightness = factor(options.brightness), contrast = factor(options.contrast);
    const double saturation = factor(options.saturation);
    const double hue = random.uniform(-options.hue, options.hue);
    at::Tensor result = image;
    for (const int step : order) {
      if (step == 0 && options.brightness > 0) result = adjust_brightness(result, brightness);
      if (step == 1 && options.contrast > 0) result = adjust_contrast(result, contrast);
      if (step == 2 && options.saturation > 0) result = adjust_saturation(result, saturation);
      if (step == 3 && options.hue > 0) result = adjust_hue(result, hue);
    }
    return result;
  };
}

ImageTransform random_erasing(ErasingOptions options) {
  check_range("random_erasing: probability", options.probability, 0, 1);
  check_ordered("random_erasing: scale", options.least_scale, options.most_scale);
  check_ordered("random_erasing: ratio", options.least_ratio, options.most_ratio);
  return [=](const at::Tensor& image, Random& random) {
    check_image("random_erasing", image);
    if (!random.chance(options.probability)) return image;
    const auto part = draw_erased(image.size(-2), image.size(-1), options, random);
    if (!part) return image;
    return erase(image, part->top, part->left, part->height, part->width, options.value);
  };
}

}  // namespace bellows::data
