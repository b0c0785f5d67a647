// CIFAR-10 and CIFAR-100 in their binary form, plain or gzip-compressed.
// Source: https://www.cs.toronto.edu/~kriz/cifar.html ("binary version": label bytes, then 3072
// bytes of red, green and blue planes).
#pragma once

#include <cstdint>
#include <filesystem>

#include "bellows/data/tensor_dataset.h"

namespace bellows::data {

struct CifarOptions {
  /// Folder with data_batch_1.bin … data_batch_5.bin, test_batch.bin (CIFAR-10), or train.bin,
  /// test.bin (CIFAR-100), each plain or .gz.
  std::filesystem::path root = "data/cifar-10-batches-bin";
  bool train = true;
  /// 10 or 100 classes; of CIFAR-100 the fine labels.
  int64_t classes = 10;
  /// Only the first `limit` samples; 0, or more than there are: all.
  int64_t limit = 0;
};

/// Input uint8 [3, 32, 32], target int64 scalar. Throws FileError; EnvironmentError for a missing
/// file, with where the set can be had from; ValueError for options out of range; CorruptFileError
/// for a file that is empty or cut inside a record, damaged gzip data, and a label out of range
/// (file, record, label). All labels are checked, also past `limit`.
TensorDataset read_cifar_dataset(const CifarOptions& options);

}  // namespace bellows::data
