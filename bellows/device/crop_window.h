// The part of an image that a crop takes. No LibTorch here: CUDA code includes it.
#pragma once

#include <cstdint>

namespace bellows {

/// The window's first row and column in the image, which may lie outside of it; then whether left
/// becomes right.
struct CropWindow {
  int32_t top = 0;
  int32_t left = 0;
  bool flip = false;
};

}  // namespace bellows
