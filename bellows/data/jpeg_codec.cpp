// libjpeg's errors leave by longjmp: nothing with a destructor may live between setjmp and there.
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <jerror.h>
#include <jpeglib.h>
#include <string>
#include <vector>

#include "bellows/core/text.h"
#include "bellows/data/image_codec.h"

namespace bellows::data {
namespace {

struct ErrorManager {
  jpeg_error_mgr base;  // first: libjpeg's pointer to it is ours
  std::jmp_buf leave;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave(j_common_ptr info) {
  auto* errors = reinterpret_cast<ErrorManager*>(info->err);
  errors->base.format_message(info, errors->message);
  std::longjmp(errors->leave, 1);
}

// libjpeg fills up what is missing and goes on with a warning. Bytes too many between markers
// (which cameras write) and odd version numbers do no harm; any other warning is damage.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  const int code = info->err->msg_code;
  if (code == JWRN_EXTRANEOUS_DATA || code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM) return;
  leave(info);
}

int scale_for(int64_t height, int64_t width, const CodecOptions& options) {
  if (options.least_height <= 0 || options.least_width <= 0) return 8;
  for (const int eighths : {1, 2, 4}) {
    const auto scaled = [&](int64_t size) { return (size * eighths + 7) / 8; };
    if (scaled(height) >= options.least_height && scaled(width) >= options.least_width)
      return eighths;
  }
  return 8;
}

struct Decoder {
  jpeg_decompress_struct info{};
  ErrorManager errors{};
  std::vector<uint8_t> cmyk_row;
  uint8_t* pixels = nullptr;

  Decoder() {
    info.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = leave;
    errors.base.emit_message = on_message;
  }
  ~Decoder() { jpeg_destroy_decompress(&info); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // False with errors.message set.
  bool read_header(std::span<const std::byte> file) {
    if (setjmp(errors.leave) != 0) return false;
    jpeg_create_decompress(&info);
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&info, TRUE);
    return true;
  }

  bool start(const CodecOptions& options) {
    if (setjmp(errors.leave) != 0) return false;
    const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
    info.out_color_space = cmyk ? JCS_CMYK : options.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    info.scale_num = static_cast<unsigned>(scale_for(info.image_height, info.image_width, options));
    info.scale_denom = 8;
    jpeg_start_decompress(&info);
    return true;
  }

  bool read_rows(size_t row_bytes, int channels) {
    if (setjmp(errors.leave) != 0) return false;
    while (info.output_scanline < info.output_height) {
      uint8_t* const row = pixels + row_bytes * info.output_scanline;
      JSAMPROW target = cmyk_row.empty() ? row : cmyk_row.data();
      jpeg_read_scanlines(&info, &target, 1);
      if (!cmyk_row.empty()) convert_cmyk(row, channels);
    }
    jpeg_finish_decompress(&info);
    return true;
  }

  // Adobe's files, the only ones there are in practice, hold the inverse of each ink.
  void convert_cmyk(uint8_t* row, int channels) const {
    const bool inverted = info.saw_Adobe_marker != 0;
    for (size_t x = 0; x < info.output_width; ++x) {
      const uint8_t* const ink = cmyk_row.data() + 4 * x;
      const auto light = [&](int i) { return inverted ? ink[i] : 255 - ink[i]; };
      int rgb[3];
      for (int c = 0; c < 3; ++c) rgb[c] = (light(c) * light(3) + 127) / 255;
      if (channels == 1) {
        *row++ = static_cast<uint8_t>((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] + 500) / 1000);
      } else {
        for (const int value : rgb) *row++ = static_cast<uint8_t>(value);
      }
    }
  }

  [[noreturn]] void fail() const { throw ImageError(concat("JPEG: ", errors.message)); }
};

}  // namespace

void decode_jpeg(std::span<const std::byte> file, const CodecOptions& options,
                 const PixelMemory& memory) {
  Decoder decoder;
  if (!decoder.read_header(file)) decoder.fail();
  check_image_size(decoder.info.image_height, decoder.info.image_width, options);
  if (!decoder.start(options)) decoder.fail();
  const auto height = static_cast<int64_t>(decoder.info.output_height);
  const auto width = static_cast<int64_t>(decoder.info.output_width);
  if (decoder.info.out_color_space == JCS_CMYK)
    decoder.cmyk_row.resize(static_cast<size_t>(4 * width));
  decoder.pixels = memory(height, width);
  if (!decoder.read_rows(static_cast<size_t>(width * options.channels), options.channels))
    decoder.fail();
}

}  // namespace bellows::data
