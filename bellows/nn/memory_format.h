// Channels-last memory format for a module's weights.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace bellows::nn {

/// Gives every 4-dimensional tensor the strides of channels-last, in place, as Python's
/// module.to(memory_format=torch.channels_last). Values, shapes and handles stay.
void make_channels_last(const std::vector<at::Tensor>& tensors);

}  // namespace bellows::nn
