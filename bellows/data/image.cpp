#include "bellows/data/image.h"

#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"
#include "bellows/data/image_codec.h"

namespace bellows::data {

at::Tensor decode_image(std::span<const std::byte> file, const ImageOptions& options) {
  at::Tensor pixels;
  const CodecOptions codec{options.channels, options.least_height, options.least_width,
                           options.most_pixels};
  decode_image_rows(file, codec, [&](int64_t height, int64_t width) {
    pixels = at::empty({height, width, options.channels}, at::kByte);
    return pixels.mutable_data_ptr<uint8_t>();
  });
  return pixels.permute({2, 0, 1});
}

at::Tensor read_image(const std::filesystem::path& path, const ImageOptions& options) {
  const std::string bytes = read_file(path);
  try {
    return decode_image(std::as_bytes(std::span(bytes)), options);
  } catch (const ImageError& error) {
    throw CorruptFileError(path, error.what());
  }
}

}  // namespace bellows::data
