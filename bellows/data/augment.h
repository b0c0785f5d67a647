// Random changes of images, and how they are put into a dataset or a loader. What is drawn depends
// on the Random that is given alone. On a batch all its images get the same draw.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bellows/data/combine.h"
#include "bellows/data/loader.h"
#include "bellows/data/random.h"

namespace bellows::data {

/// [C, H, W] or a batch to the same. Called from many threads at once.
using ImageTransform = std::function<at::Tensor(const at::Tensor& image, Random& random)>;

/// One after the other.
ImageTransform compose(std::vector<ImageTransform> transforms);
/// For `map`: changes entry 0 of a sample that is a list.
SampleTransform on_image(ImageTransform transform);
/// For LoaderOptions::on_batch: changes entry 0 of a batch that is a list, as a whole.
BatchTransform on_images(ImageTransform transform);

// The functions below give transforms with the defaults of torchvision.transforms.v2's classes of
// the same name, and throw ValueError for arguments out of range at once.

/// height x width from a random place of the image with `padding` of `fill` around it.
ImageTransform random_crop(int64_t height, int64_t width, int64_t padding = 0, double fill = 0);
ImageTransform random_horizontal_flip(double probability = 0.5);

struct CropFlipOptions {
  /// Of a crop at a random place of the image with `padding` around it; both 0: no crop.
  int64_t height = 0;
  int64_t width = 0;
  int64_t padding = 0;
  uint8_t fill = 0;
  /// 0: no flip, and nothing drawn for it.
  double flip_probability = 0;
  /// For each channel, or one for all; see normalize() in bellows/device/normalize.h.
  std::vector<double> mean = {0};
  std::vector<double> std = {1};
  /// float32, float16 or bfloat16.
  at::ScalarType type = at::kFloat;
  /// Strides of at::MemoryFormat::ChannelsLast.
  bool channels_last = false;
};
/// For `map_batches`, of batches that are lists with images uint8 [N, C, H, W] in front: random
/// crop, random horizontal flip and normalising of each image in one pass over memory, with the
/// draws and the numbers of random_crop, random_horizontal_flip and normalize() on the samples one
/// by one.
BatchMap random_crop_flip_normalize(CropFlipOptions options);

struct ResizedCropOptions {
  /// Of the image's area.
  double least_scale = 0.08;
  double most_scale = 1;
  /// Width to height.
  double least_ratio = 3.0 / 4;
  double most_ratio = 4.0 / 3;
};
/// A part of random size and proportion, resized to height x width; where ten draws do not fit, the
/// middle.
ImageTransform random_resized_crop(int64_t height, int64_t width, ResizedCropOptions options = {});

/// Factors are drawn from [max(0, 1 - x), 1 + x], hue from [-x, x]; applied in random order.
struct ColourJitterOptions {
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  /// At most 0.5.
  double hue = 0;
};
ImageTransform colour_jitter(ColourJitterOptions options);

struct ErasingOptions {
  double probability = 0.5;
  /// Of the image's area.
  double least_scale = 0.02;
  double most_scale = 0.33;
  /// Height to width.
  double least_ratio = 0.3;
  double most_ratio = 3.3;
  double value = 0;
};
/// With some probability a random rectangle becomes `value` (Zhong et al., 2020); where ten draws
/// do not fit, nothing.
ImageTransform random_erasing(ErasingOptions options = {});

}  // namespace bellows::data
