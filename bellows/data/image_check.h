// What all transforms ask of an image.
#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::data {

/// Throws ValueError "<what>: got …" unless it is uint8 or floating point with 3 dimensions or
/// more.
void check_image(const char* what, const at::Tensor& image);

}  // namespace bellows::data
