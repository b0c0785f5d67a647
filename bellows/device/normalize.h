// From bytes to numbers: the first step of every image model, as one pass over memory.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

namespace bellows {

/// Where the channel dimension of an image or of a batch of images is.
enum class ChannelDim { first, last };

/// (x / 255 - mean) / std for each channel: uint8 [C, H, W], [N, C, H, W] or, with
/// ChannelDim::last, [H, W, C], [N, H, W, C] to a new, contiguous float32 tensor of the same shape
/// on the same device. One rounding after each of the three operations, so the CPU and CUDA give
/// the same bits as torchvision's ToTensor and Normalize. Throws ValueError for another type,
/// shape, count of channels, or std of 0; EnvironmentError for a CUDA tensor without the CUDA
/// module. Thread-safe; on CUDA enqueued on the current stream.
at::Tensor normalize(const at::Tensor& images, std::span<const float> mean,
                     std::span<const float> std, ChannelDim channels = ChannelDim::first);

}  // namespace bellows
