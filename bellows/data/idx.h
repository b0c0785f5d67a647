// The IDX format of MNIST and its kin, plain or gzip-compressed.
// Source: the format's description on the MNIST page (magic 0 0 type rank, big-endian sizes, then
// data).
#pragma once

#include <cstdint>
#include <filesystem>

#include "bellows/data/tensor_dataset.h"

namespace bellows::data {

/// Reads one IDX file into a CPU tensor of its own type and shape (types 0x08 uint8, 0x09 int8,
/// 0x0B int16, 0x0C int32, 0x0D float32, 0x0E float64). `path` may be compressed, whatever its
/// name, or be found as path + ".gz". Throws FileError when neither exists (ENOENT) or it cannot be
/// read, CorruptFileError naming the file, what was found and what was expected (magic, type, rank,
/// sizes, missing or excess bytes, damaged gzip). Nothing is allocated before the header's sizes
/// have been checked against the data that is there.
at::Tensor read_idx(const std::filesystem::path& path);

struct IdxDatasetOptions {
  /// Folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-… (each plain or .gz).
  std::filesystem::path root = "/usr/share/datasets/fashion-mnist";
  bool train = true;
  /// Labels must lie in [0, classes).
  int64_t classes = 10;
  /// Only the first `limit` samples; 0, or more than there are: all.
  int64_t limit = 0;
  /// Pixels become (value / 255 - mean) / std in float32, bit-equal to torchvision's ToTensor and
  /// Normalize, shape [N, 1, rows, columns], once, at load time. The defaults are Fashion-MNIST's.
  double mean = 0.2860;
  double std = 0.3530;
  /// Pixels stay the bytes that they are, uint8 [N, 1, rows, columns]; `mean` and `std` have no
  /// effect.
  bool bytes = false;
};

/// Images and labels of an MNIST-like set: input float32 (or uint8) [1, rows, columns], target
/// int64 scalar. Throws as `read_idx`; EnvironmentError for a missing file, with where the set can
/// be had from; ValueError for options out of range; CorruptFileError when counts differ, an image
/// has no pixels, or a label is out of range (file, index, label). All labels are checked, also
/// past `limit`.
TensorDataset read_idx_dataset(const IdxDatasetOptions& options);

}  // namespace bellows::data
