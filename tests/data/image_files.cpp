#include "tests/data/image_files.h"

#include <archive.h>
#include <archive_entry.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <jpeglib.h>
#include <png.h>

#include <gtest/gtest.h>

namespace bellows::data::test {

Pixels picture(int64_t height, int64_t width, int channels, int variant) {
  Pixels result{height, width, channels, {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const double wave = std::sin(0.11 * static_cast<double>(x) * (c + 1) + variant) +
                            std::cos(0.07 * static_cast<double>(y) * (3 - c));
        result.values.push_back(static_cast<uint8_t>(127.5 + 60 * wave));
      }
    }
  }
  return result;
}

std::string jpeg_bytes(const Pixels& pixels, int quality, bool progressive) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &data, &size);
  info.image_width = static_cast<JDIMENSION>(pixels.width);
  info.image_height = static_cast<JDIMENSION>(pixels.height);
  info.input_components = pixels.channels;
  info.in_color_space = pixels.channels == 1   ? JCS_GRAYSCALE
                        : pixels.channels == 3 ? JCS_RGB
                                               : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<uint8_t*>(pixels.values.data()) +
                info.next_scanline * static_cast<size_t>(pixels.width * pixels.channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string result(reinterpret_cast<char*>(data), size);
  jpeg_destroy_compress(&info);
  std::free(data);
  return result;
}

std::string png_bytes(const Pixels& pixels, int bits, bool interlaced) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string result;
  png_set_write_fn(
      png, &result,
      [](png_structp p, png_bytep data, size_t bytes) {
        static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<char*>(data), bytes);
      },
      nullptr);
  constexpr int kTypes[] = {0, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                            PNG_COLOR_TYPE_RGB_ALPHA};
  png_set_IHDR(png, info, static_cast<png_uint_32>(pixels.width),
               static_cast<png_uint_32>(pixels.height), bits, kTypes[pixels.channels],
               interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  const int bytes = bits / 8;
  const auto row_values = static_cast<size_t>(pixels.width * pixels.channels);
  std::vector<std::vector<uint8_t>> rows;
  std::vector<png_bytep> pointers;
  for (int64_t y = 0; y < pixels.height; ++y) {
    std::vector<uint8_t> row;
    for (size_t i = 0; i < row_values; ++i) {
      for (int b = 0; b < bytes; ++b)
        row.push_back(pixels.values[static_cast<size_t>(y) * row_values + i]);
    }
    rows.push_back(std::move(row));
  }
  for (auto& row : rows) pointers.push_back(row.data());
  png_write_image(png, pointers.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return result;
}

std::string tar_bytes(const std::vector<std::pair<std::string, std::string>>& files) {
  archive* out = archive_write_new();
  archive_write_set_format_ustar(out);
  archive_write_set_bytes_in_last_block(out, 1);
  std::string result;
  archive_write_open(
      out, &result, nullptr,
      [](archive*, void* to, const void* data, size_t bytes) -> la_ssize_t {
        static_cast<std::string*>(to)->append(static_cast<const char*>(data), bytes);
        return static_cast<la_ssize_t>(bytes);
      },
      nullptr);
  for (const auto& [name, content] : files) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_size(entry, static_cast<la_int64_t>(content.size()));
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    EXPECT_EQ(archive_write_header(out, entry), ARCHIVE_OK);
    archive_write_data(out, content.data(), content.size());
    archive_entry_free(entry);
  }
  archive_write_close(out);
  archive_write_free(out);
  return result;
}

}  // namespace bellows::data::test
