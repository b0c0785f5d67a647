// The IDX format of MNIST and its kin, plain or gzip-compressed.
// Source: the format's description on the MNIST page (magic 0 0 type rank, big-endian sizes, then data).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "bellows/data/tensor_dataset.h"

namespace bellows::data {

/// Reads one IDX file into a CPU tensor of its own type and shape (types 0x08 uint8, 0x09 int8, 0x0B int16,
/// 0x0C int32, 0x0D float32, 0x0E float64). `path` may end in .gz or be found as path + ".gz". Throws
/// EnvironmentError when neither exists, CorruptFileError naming the file, what was found and what was
/// expected (magic, type, rank, sizes, missing or excess bytes, damaged gzip). Nothing is allocated before
/// the header's sizes have been checked against the data that is there.
at::Tensor read_idx(const std::filesystem::path& path);

struct IdxDatasetOptions {
  /// Folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-… (each plain or .gz).
  std::filesystem::path root = "/usr/share/datasets/fashion-mnist";
  bool train = true;
  /// Labels must lie in [0, classes).
  int64_t classes = 10;
  /// Only the first `limit` samples; 0: all.
  int64_t limit = 0;
  /// Pixels become (value / 255 - mean) / std, float32, shape [N, 1, rows, columns], once, at load time.
  double mean = 0.2860;
  double std = 0.3530;
};

/// Images and labels of an MNIST-like set: input float32 [1, rows, columns], target int64 scalar. Throws as
/// `read_idx`, and CorruptFileError when counts differ or a label is out of range (file, index, label).
TensorDataset read_idx_dataset(const IdxDatasetOptions& options);

}  // namespace bellows::data
