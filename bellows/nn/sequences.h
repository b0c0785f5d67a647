// Inputs of the built-in models that read sequences.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace bellows::nn {

/// [N, T, in_features] as it is; images [N, C, H, W] row by row as [N, H, C * W], where a step
/// holds a row of the first channel, then the same row of the next. Throws ValueError that names
/// `model` for other numbers of dimensions, no steps, and another number of features than
/// `in_features`.
at::Tensor as_sequences(const std::string& model, const at::Tensor& input, int64_t in_features);

}  // namespace bellows::nn
