// The arithmetic of crop_flip_normalize() on one value: the same for the CPU
// (crop_flip_normalize.cpp) and CUDA (crop_flip_normalize.cu).
#pragma once

#include <cstdint>

#include "bellows/device/crop_window.h"
#include "bellows/device/cuda/normalize_element.h"

namespace bellows {

/// Shapes of a batch before and after. Strides count bytes of the input; the output is dense, with
/// the channels first or last.
struct CropShape {
  int64_t image_stride, row_stride, column_stride, channel_stride;
  int64_t in_height, in_width;
  int64_t images;
  int32_t channels;
  int32_t height, width;  // of a window; channels * height * width < 2^31
  bool channels_last;
  uint8_t fill;
};

/// Where column x of a window comes from; it may lie outside of the image.
BELLOWS_HOST_DEVICE inline int64_t source_column(const CropShape& shape, const CropWindow& window,
                                                 int32_t x) {
  return int64_t{window.left} + (window.flip ? shape.width - 1 - x : x);
}

BELLOWS_HOST_DEVICE inline int64_t source_row(const CropWindow& window, int32_t y) {
  return int64_t{window.top} + y;
}

/// Channel, row and column of the i-th element of an image's output.
struct CropPlace {
  int32_t channel, y, x;
};
BELLOWS_HOST_DEVICE inline CropPlace crop_place(const CropShape& shape, int32_t i) {
  if (shape.channels_last) {
    const int32_t pixel = i / shape.channels;
    return {i % shape.channels, pixel / shape.width, pixel % shape.width};
  }
  const int32_t row = i / shape.width;
  return {row / shape.height, row % shape.height, i % shape.width};
}

/// The byte that becomes the element at `place`; `image` is the first byte of the whole image.
BELLOWS_HOST_DEVICE inline uint8_t cropped_byte(const uint8_t* image, const CropShape& shape,
                                                const CropWindow& window, CropPlace place) {
  const int64_t row = source_row(window, place.y);
  const int64_t column = source_column(shape, window, place.x);
  if (row < 0 || row >= shape.in_height || column < 0 || column >= shape.in_width)
    return shape.fill;
  return image[row * shape.row_stride + column * shape.column_stride +
               place.channel * shape.channel_stride];
}

/// Element i of an image's output, before it becomes the output's type.
BELLOWS_HOST_DEVICE inline float crop_flip_normalize_element(const uint8_t* image,
                                                             const CropShape& shape,
                                                             const CropWindow& window,
                                                             const NormalizeStatistics& statistics,
                                                             int32_t i) {
  const CropPlace place = crop_place(shape, i);
  return normalize_element(cropped_byte(image, shape, window, place),
                           statistics.mean[place.channel], statistics.std[place.channel]);
}

}  // namespace bellows
