// JPEG (libjpeg-turbo) and PNG (libpng) to rows of bytes. Without LibTorch, so that it can be
// fuzzed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "bellows/core/error.h"

namespace bellows::data {

/// An image cannot be decoded: what is wrong with it, without a path, which the codec does not
/// know.
class ImageError : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

struct CodecOptions {
  /// 1 (grey) or 3 (RGB): what the image is converted to.
  int channels = 3;
  /// JPEG only: decoded at 1/2, 1/4 or 1/8 of its size, as long as neither side gets smaller than
  /// these; 0: at full size. Much cheaper than decoding all and shrinking it.
  int64_t least_height = 0;
  int64_t least_width = 0;
  /// Larger images are refused before anything is allocated for them.
  int64_t most_pixels = int64_t{1} << 28;
};

/// Gives room for height x width x channels bytes; called once, after the header has been checked.
using PixelMemory = std::function<uint8_t*(int64_t height, int64_t width)>;

/// Decodes to rows of interleaved channels. What the file is is seen by its first bytes. Alpha is
/// dropped, 16 bits become 8, palettes are looked up, CMYK becomes RGB; turning by EXIF data is not
/// done, nor by torchvision. Throws ImageError for other formats, damage of any kind, data that end
/// early. Thread-safe.
void decode_image_rows(std::span<const std::byte> file, const CodecOptions& options,
                       const PixelMemory& memory);

// One each; called by it.
void decode_jpeg(std::span<const std::byte> file, const CodecOptions& options,
                 const PixelMemory& memory);
void decode_png(std::span<const std::byte> file, const CodecOptions& options,
                const PixelMemory& memory);
/// A PNG file of rows of interleaved channels: 1 (grey) or 3 (RGB). Throws ImageError for a size
/// that PNG does not have.
std::string encode_png_rows(const uint8_t* pixels, int64_t height, int64_t width, int channels);
/// Throws ImageError where an image of this size is too large or empty.
void check_image_size(int64_t height, int64_t width, const CodecOptions& options);

}  // namespace bellows::data
