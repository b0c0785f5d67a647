// libpng's errors leave by longjmp: nothing with a destructor may live between setjmp and there.
#include <csetjmp>
#include <cstring>
#include <png.h>
#include <string>
#include <vector>

#include "bellows/core/text.h"
#include "bellows/data/image_codec.h"

namespace bellows::data {
namespace {

struct Decoder {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::byte> rest;
  char message[256] = "out of memory";
  std::vector<png_bytep> rows;

  Decoder() {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
  }
  ~Decoder() { png_destroy_read_struct(&png, &info, nullptr); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  [[noreturn]] static void on_error(png_structp png, png_const_charp text) {
    auto* self = static_cast<Decoder*>(png_get_error_ptr(png));
    std::strncpy(self->message, text, sizeof(self->message) - 1);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}  // of chunks that are not pixels

  static void on_read(png_structp png, png_bytep out, size_t bytes) {
    auto* self = static_cast<Decoder*>(png_get_io_ptr(png));
    if (bytes > self->rest.size()) png_error(png, "the data end early");
    std::memcpy(out, self->rest.data(), bytes);
    self->rest = self->rest.subspan(bytes);
  }

  // False with `message` set.
  bool read_header() {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    constexpr png_uint_32 kMostSide = 1 << 20;
    constexpr size_t kMostChunk = 64 << 20;
    png_set_user_limits(png, kMostSide, kMostSide);
    png_set_chunk_malloc_max(png, kMostChunk);
    png_set_read_fn(png, this, on_read);
    png_read_info(png, info);
    return true;
  }

  bool set_up(int channels) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_set_expand(png);  // palettes and few bits to 8 bits, transparency to alpha
    png_set_scale_16(png);
    png_set_strip_alpha(png);
    const bool grey = (png_get_color_type(png, info) & PNG_COLOR_MASK_COLOR) == 0;
    if (channels == 3 && grey) png_set_gray_to_rgb(png);
    if (channels == 1 && !grey) png_set_rgb_to_gray(png, PNG_ERROR_ACTION_NONE, 0.299, 0.587);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return true;
  }

  bool read_rows() {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_read_image(png, rows.data());
    png_read_end(png, nullptr);
    return true;
  }

  [[noreturn]] void fail() const { throw ImageError(concat("PNG: ", message)); }
};

}  // namespace

void decode_png(std::span<const std::byte> file, const CodecOptions& options,
                const PixelMemory& memory) {
  Decoder decoder;
  if (decoder.info == nullptr) decoder.fail();
  decoder.rest = file;
  if (!decoder.read_header()) decoder.fail();
  const int64_t height = png_get_image_height(decoder.png, decoder.info);
  const int64_t width = png_get_image_width(decoder.png, decoder.info);
  check_image_size(height, width, options);
  if (!decoder.set_up(options.channels)) decoder.fail();
  const auto row_bytes = static_cast<size_t>(width * options.channels);
  if (png_get_rowbytes(decoder.png, decoder.info) != row_bytes)
    throw ImageError("PNG: got rows of another length than the header says");
  uint8_t* pixels = memory(height, width);
  for (int64_t y = 0; y < height; ++y)
    decoder.rows.push_back(pixels + row_bytes * static_cast<size_t>(y));
  if (!decoder.read_rows()) decoder.fail();
}

std::string encode_png_rows(const uint8_t* pixels, int64_t height, int64_t width, int channels) {
  constexpr int64_t kMostSide = 1 << 20;
  if (height < 1 || width < 1 || height > kMostSide || width > kMostSide)
    throw ImageError(concat("PNG: got a size of ", height, " x ", width,
                            " to write, expected 1 to ", kMostSide));
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(height);
  image.width = static_cast<png_uint_32>(width);
  image.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string file(bytes, '\0');
  if (png_image_write_to_memory(&image, file.data(), &bytes, 0, pixels, 0, nullptr) == 0)
    throw ImageError(concat("PNG: ", image.message));
  file.resize(bytes);
  return file;
}

}  // namespace bellows::data
