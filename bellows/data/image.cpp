#include "bellows/data/image.h"

#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/image_codec.h"
#include "bellows/formats/input_bytes.h"

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

std::string encode_png(const at::Tensor& image) {
  if (!image.defined() || image.scalar_type() != at::kByte || !image.is_cpu() || image.dim() != 3 ||
      (image.size(0) != 1 && image.size(0) != 3) || image.numel() == 0) {
    throw ValueError(concat(
        "encode_png: got ",
        image.defined() ? concat(image.scalar_type(), " of shape ", image.sizes()) : "nothing",
        ", expected uint8 [1 or 3, height, width] on the CPU"));
  }
  const at::Tensor rows = image.permute({1, 2, 0}).contiguous();
  return encode_png_rows(rows.const_data_ptr<uint8_t>(), rows.size(0), rows.size(1),
                         static_cast<int>(rows.size(2)));
}

at::Tensor read_image(const std::filesystem::path& path, const ImageOptions& options) {
  const formats::InputFile file(path);
  const std::string bytes = file.text(0, file.size());
  try {
    return decode_image(std::as_bytes(std::span(bytes)), options);
  } catch (const ImageError& error) {
    throw CorruptFileError(path, error.what());
  }
}

}  // namespace bellows::data
