// Image files to tensors, and folders of them to datasets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bellows/data/dataset.h"

namespace bellows::data {

struct ImageOptions {
  /// 3: RGB, 1: grey; every image becomes that.
  int channels = 3;
  /// JPEG only: decoded at 1/2, 1/4 or 1/8 of its size where both sides stay at least this large;
  /// 0: at full size. Several times cheaper where the image is shrunk afterwards; not the same
  /// pixels as shrinking the full image.
  int64_t least_height = 0;
  int64_t least_width = 0;
  /// Larger images are refused before anything is allocated for them.
  int64_t most_pixels = int64_t{1} << 28;
};

/// A JPEG or PNG file's bytes to uint8 [channels, height, width], interleaved in memory (strides of
/// channels last). Alpha is dropped, 16 bits become 8, CMYK becomes RGB; EXIF's orientation is not
/// heeded, as in torchvision. Throws EnvironmentError for another format, damage, data that end
/// early; ValueError for options out of range. Thread-safe.
at::Tensor decode_image(std::span<const std::byte> file, const ImageOptions& options = {});
/// The same of a file; CorruptFileError with its path, FileError, or EnvironmentError for a pipe or
/// a device.
at::Tensor read_image(const std::filesystem::path& path, const ImageOptions& options = {});

/// A PNG file of uint8 [1 or 3, height, width] on the CPU, of any strides. Throws ValueError for
/// others.
std::string encode_png(const at::Tensor& image);

/// One folder per class with image files below it, as torchvision.datasets.ImageFolder: classes are
/// the sorted names, files lie in sorted order (.jpg, .jpeg, .png; others are ignored). Sample: the
/// list {image, class}: uint8 [channels, H, W] of the image's own size, int64 scalar.
class ImageFolder : public Dataset {
 public:
  /// Lists the folder; reads no image. Throws FileError; EnvironmentError for no classes, and one
  /// without images.
  explicit ImageFolder(const std::filesystem::path& root, ImageOptions options = {});
  ~ImageFolder() override;
  int64_t size() const override;
  Tree get(int64_t index) const override;
  /// The file's path.
  std::string source(int64_t index) const override;
  const std::vector<std::string>& classes() const { return classes_; }
  /// The class of a sample, without reading it.
  int64_t class_of(int64_t index) const;
  /// Memory that the list of files takes: their names and 8 bytes each.
  size_t index_bytes() const;

 private:
  struct Folder {
    std::string path;
    int64_t end;  // of its files in the list
    int64_t label;
  };
  const Folder& folder_of(int64_t index) const;
  void add_class(const std::filesystem::path& path, int64_t label);
  void add_folder(const std::string& path, int64_t label);

  ImageOptions options_;
  std::vector<std::string> classes_;
  std::vector<Folder> folders_;
  std::string names_;           // of all files, one after the other
  std::vector<uint64_t> ends_;  // of each name
};

}  // namespace bellows::data
