// Map-style datasets: something with a size that gives the sample at an index.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "bellows/tree/tree.h"

namespace bellows::data {

/// Immutable once built: `get` and `get_batch` are const and are called from many threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Number of samples.
  virtual int64_t size() const = 0;

  /// The sample at `index` in [0, size()): for supervised data a list {input, target}. Throws ValueError
  /// when out of range.
  virtual Tree get(int64_t index) const = 0;

  /// Several samples as one batch, each tensor with a new first dimension of indices.size(). The default
  /// calls `get` and stacks; datasets in memory copy whole batches by index instead.
  virtual Tree get_batch(std::span<const int64_t> indices) const;

  /// For readers that are not thread-safe: a dataset of its own for one worker thread, with the same
  /// samples. Null (the default) means that all workers share this one.
  virtual std::unique_ptr<Dataset> for_worker() const { return nullptr; }
};

/// Stacks samples of equal structure: tensors are stacked, numbers become tensors, strings become a list.
/// Throws ValueError naming the sample's position, the field's path and both shapes where they differ.
Tree collate(std::span<const Tree> samples);

}  // namespace bellows::data
