#include "bellows/data/image_codec.h"

#include <string>
#include <string_view>

#include "bellows/core/text.h"

namespace bellows::data {
namespace {

std::string first_bytes(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes.substr(0, 8)) {
    const auto byte = static_cast<unsigned char>(c);
    text += {kDigits[byte >> 4], kDigits[byte & 15], ' '};
  }
  if (!text.empty()) text.pop_back();
  return text;
}

}  // namespace

void check_image_size(int64_t height, int64_t width, const CodecOptions& options) {
  if (height < 1 || width < 1 || height > options.most_pixels / width) {
    throw ImageError(concat("got an image of ", width, " x ", height, " pixels, expected 1 to ",
                            options.most_pixels, " in all"));
  }
}

void decode_image_rows(std::span<const std::byte> file, const CodecOptions& options,
                       const PixelMemory& memory) {
  if (options.channels != 1 && options.channels != 3)
    throw ValueError(concat("image: got ", options.channels, " channels, expected 1 or 3"));
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  if (bytes.starts_with("\xff\xd8\xff")) return decode_jpeg(file, options, memory);
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(file, options, memory);
  throw ImageError(concat("got ", file.size(), " bytes that begin with ", first_bytes(bytes),
                          ", expected a JPEG (ff d8 ff) or a PNG (89 50 4e 47) file"));
}

}  // namespace bellows::data
