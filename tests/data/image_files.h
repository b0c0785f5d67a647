// JPEG, PNG and tar files made for tests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace bellows::data::test {

struct Pixels {
  int64_t height, width;
  int channels;
  std::vector<uint8_t> values;  // rows of interleaved channels
};

/// Smooth colours, another picture for each `variant`.
Pixels picture(int64_t height, int64_t width, int channels = 3, int variant = 0);
/// channels 1, 3 or 4 (CMYK).
std::string jpeg_bytes(const Pixels& pixels, int quality = 95, bool progressive = false);
/// channels 1 to 4, 8 or 16 bits (each value then stands for value * 257).
std::string png_bytes(const Pixels& pixels, int bits = 8, bool interlaced = false);
/// A plain tar archive of name -> content.
std::string tar_bytes(const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace bellows::data::test
