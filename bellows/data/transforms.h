// Changes of images: [C, H, W] or batches [..., C, H, W], uint8 or floating point, on any device.
// Each is one formula of LibTorch's operators, for all devices, and gives what
// torchvision.transforms.v2.functional gives (resize within 1 level; hue within 1 level).
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace bellows::data {

// All are thread-safe, leave their argument as it is, may return a view of it, and throw ValueError
// for an undefined tensor, fewer than 3 dimensions, another type, or an argument out of range.

/// uint8 0 to 255 becomes `type` 0 to 1 by one division, as ToTensor; floating point is only
/// converted.
at::Tensor to_float(const at::Tensor& image, at::ScalarType type = at::kFloat);

/// (x - mean) / std for each channel of a floating-point image; see bellows/device/normalize.h for
/// bytes, in one pass. Statistics for each channel, or one for all; no std of 0.
at::Tensor normalize_channels(const at::Tensor& image, std::span<const double> mean,
                              std::span<const double> std);

/// Bilinear, to height x width; antialiased where it shrinks. uint8 is rounded.
at::Tensor resize(const at::Tensor& image, int64_t height, int64_t width);
/// The shorter side becomes `size`, the longer one keeps the proportion, rounded down.
at::Tensor resize_shorter(const at::Tensor& image, int64_t size);

/// Rows [top, top + height) and columns [left, left + width); what lies outside of the image is
/// `fill`.
at::Tensor crop(const at::Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width,
                double fill = 0);
/// From the middle; where the image is smaller, 0 lies around it.
at::Tensor center_crop(const at::Tensor& image, int64_t height, int64_t width);

/// Left becomes right.
at::Tensor flip_horizontal(const at::Tensor& image);

/// The region becomes `value`.
at::Tensor erase(const at::Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width,
                 double value = 0);

/// Grey by 0.2989 R + 0.587 G + 0.114 B: [..., 1, H, W], floating point (not rounded).
at::Tensor to_grey(const at::Tensor& image);

// Factors: 1 leaves the image as it is, 0 gives black, grey on average, or grey. Images of 1 or 3
// channels, floating-point ones from 0 to 1; each image of a batch for itself.
at::Tensor adjust_brightness(const at::Tensor& image, double factor);
at::Tensor adjust_contrast(const at::Tensor& image, double factor);
at::Tensor adjust_saturation(const at::Tensor& image, double factor);
/// Turns the colour circle by `turn` of it, from -0.5 to 0.5.
at::Tensor adjust_hue(const at::Tensor& image, double turn);

}  // namespace bellows::data
