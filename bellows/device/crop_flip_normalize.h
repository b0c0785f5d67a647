// From bytes of images to the numbers of a training batch: crop, flip and normalise in one pass
// over memory.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "bellows/device/crop_window.h"

namespace bellows {

struct CropFlipNormalizeOptions {
  /// Of the windows.
  int64_t height = 0;
  int64_t width = 0;
  /// What lies outside of an image, as a byte: torchvision's RandomCrop pads before Normalize.
  uint8_t fill = 0;
  /// float32, float16 or bfloat16; computed in float32 and rounded once.
  at::ScalarType type = at::kFloat;
  /// Strides of at::MemoryFormat::ChannelsLast; the sizes stay [N, C, height, width].
  bool channels_last = false;
};

/// uint8 [N, H, W, C] to [N, C, height, width] on the same device: window n of image n, flipped
/// where it says so, as (x / 255 - mean) / std for each channel. Same bits as crop, flip,
/// normalize() and a conversion one after the other, on every device. Images of any strides are
/// read where they lie (of planes [N, C, H, W]: give images.permute({0, 2, 3, 1})).
///
/// Throws ValueError for another type or shape, counts that do not fit (windows, statistics,
/// at most 256 channels), a size below 1 or of 2^31 and more values for an image, a std of 0;
/// EnvironmentError for a CUDA tensor without the CUDA module. Thread-safe; uses the calling thread
/// alone; on CUDA enqueued on the current stream.
at::Tensor crop_flip_normalize(const at::Tensor& images, std::span<const CropWindow> windows,
                               std::span<const float> mean, std::span<const float> std,
                               const CropFlipNormalizeOptions& options);

/// The same into `out`, [N, C, height, width] on the images' device, dense with its channels first
/// or last: its sizes, type and strides take the options' place.
void crop_flip_normalize_out(const at::Tensor& images, std::span<const CropWindow> windows,
                             std::span<const float> mean, std::span<const float> std, uint8_t fill,
                             const at::Tensor& out);

}  // namespace bellows
