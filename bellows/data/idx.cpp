#include "bellows/data/idx.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/idx_file.h"

namespace bellows::data {
namespace {

namespace fs = std::filesystem;

at::ScalarType scalar_type(IdxType type) {
  switch (type) {
    case IdxType::kUInt8:
      return at::kByte;
    case IdxType::kInt8:
      return at::kChar;
    case IdxType::kInt16:
      return at::kShort;
    case IdxType::kInt32:
      return at::kInt;
    case IdxType::kFloat32:
      return at::kFloat;
    case IdxType::kFloat64:
      return at::kDouble;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown IdxType");
}

void check_options(const IdxDatasetOptions& options) {
  const auto fail = [](const auto&... what) { throw ValueError(concat("IDX dataset: ", what...)); };
  if (options.limit < 0) fail("got limit ", options.limit, ", expected 0 (all samples) or more");
  if (options.classes < 1) fail("got ", options.classes, " classes, expected at least 1");
  if (!std::isfinite(options.mean)) fail("got mean ", options.mean, ", expected a finite number");
  if (!std::isfinite(options.std) || options.std <= 0) {
    fail("got std ", options.std, ", expected a finite number above 0");
  }
}

// One file of the set, of type uint8 and the given rank.
IdxFile read_part(const IdxDatasetOptions& options, const char* part, size_t rank) {
  IdxFile file;
  try {
    file = read_idx_file(options.root / (std::string(options.train ? "train" : "t10k") + part));
  } catch (const FileError& error) {
    if (error.code() != ENOENT) throw;
    throw EnvironmentError(
        concat(error.what(),
               "; the dataset's root must be the folder that holds it "
               "(Debian's package dataset-fashion-mnist provides the Fashion-MNIST set "
               "in /usr/share/datasets/fashion-mnist)"));
  }
  if (file.type != IdxType::kUInt8 || file.shape.size() != rank) {
    throw CorruptFileError(
        file.path, concat("got ", shape_text(file.shape), " ", idx_type_name(file.type), " (rank ",
                          file.shape.size(), "), expected uint8 of rank ", rank));
  }
  return file;
}

void check_images(const IdxFile& images) {
  if (std::find(images.shape.begin(), images.shape.end(), 0) != images.shape.end()) {
    throw CorruptFileError(images.path, concat("got images of shape ", shape_text(images.shape),
                                               ", expected at least one image and one pixel"));
  }
}

void check_labels(const IdxFile& labels, const IdxFile& images, int64_t classes) {
  if (labels.shape[0] != images.shape[0]) {
    throw CorruptFileError(labels.path,
                           concat("got ", labels.shape[0], " labels, expected ", images.shape[0],
                                  ", one for each image in ", images.path.string()));
  }
  const auto bad = std::find_if(labels.bytes.begin(), labels.bytes.end(), [&](std::byte label) {
    return std::to_integer<int64_t>(label) >= classes;
  });
  if (bad != labels.bytes.end()) {
    throw CorruptFileError(labels.path,
                           concat("label ", bad - labels.bytes.begin(), " is ",
                                  std::to_integer<int>(*bad), ", expected 0 to ", classes - 1));
  }
}

// (value / 255 - mean) / std by LibTorch's own arithmetic, worked out once for each of the 256
// values.
at::Tensor normalised(const std::vector<std::byte>& pixels, at::IntArrayRef shape,
                      const IdxDatasetOptions& options) {
  const at::Tensor values =
      at::arange(256, at::kFloat).div_(255).sub_(options.mean).div_(options.std);
  const float* table = values.const_data_ptr<float>();
  at::Tensor result = at::empty(shape, at::kFloat);
  std::transform(pixels.begin(), pixels.begin() + result.numel(), result.mutable_data_ptr<float>(),
                 [table](std::byte pixel) { return table[std::to_integer<size_t>(pixel)]; });
  return result;
}

at::Tensor bytes_of(const std::vector<std::byte>& pixels, at::IntArrayRef shape) {
  at::Tensor result = at::empty(shape, at::kByte);
  std::memcpy(result.mutable_data_ptr(), pixels.data(), result.nbytes());
  return result;
}

at::Tensor class_indices(const std::vector<std::byte>& labels, int64_t count) {
  at::Tensor result = at::empty({count}, at::kLong);
  std::transform(labels.begin(), labels.begin() + count, result.mutable_data_ptr<int64_t>(),
                 [](std::byte label) { return std::to_integer<int64_t>(label); });
  return result;
}

}  // namespace

at::Tensor read_idx(const fs::path& path) {
  auto file = std::make_shared<IdxFile>(read_idx_file(path));
  void* data = file->bytes.data();
  return at::from_blob(
      data, file->shape, [file](void*) {}, scalar_type(file->type));
}

TensorDataset read_idx_dataset(const IdxDatasetOptions& options) {
  check_options(options);
  const IdxFile images = read_part(options, "-images-idx3-ubyte", 3);
  check_images(images);
  const IdxFile labels = read_part(options, "-labels-idx1-ubyte", 1);
  check_labels(labels, images, options.classes);
  const int64_t all = images.shape[0];
  const int64_t count = options.limit == 0 ? all : std::min(options.limit, all);
  const std::array<int64_t, 4> shape = {count, 1, images.shape[1], images.shape[2]};
  return TensorDataset(
      {options.bytes ? bytes_of(images.bytes, shape) : normalised(images.bytes, shape, options),
       class_indices(labels.bytes, count)});
}

}  // namespace bellows::data
