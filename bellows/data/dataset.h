// Map-style datasets: something with a size that gives the sample at an index.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "bellows/core/error.h"
#include "bellows/tree/tree.h"

namespace bellows::data {

/// Immutable once built: `get` and `get_batch` are const and are called from many threads at once.
/// What they return is the caller's to keep and to change: it shares no memory with the dataset or
/// with other calls.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Number of samples; never changes.
  virtual int64_t size() const = 0;

  /// The sample at `index` in [0, size()): for supervised data a list {input, target}. Throws
  /// ValueError when out of range.
  virtual Tree get(int64_t index) const = 0;

  /// Several samples as one batch, each tensor with a new first dimension of indices.size(). The
  /// default calls `get` and stacks; datasets in memory copy whole batches by index instead. Throws
  /// ValueError for no indices or one out of range (before any sample is read), SampleError when
  /// `get` throws.
  virtual Tree get_batch(std::span<const int64_t> indices) const;

  /// For readers that are not thread-safe: a dataset of its own for one worker thread, with the
  /// same samples. Null (the default) means that all workers share this one.
  virtual std::unique_ptr<Dataset> for_worker() const { return nullptr; }
};

/// Reading one sample failed. The message is "sample <index>: <the message of the cause>"; the
/// cause itself is nested in it (std::rethrow_if_nested).
class SampleError : public Error {
 public:
  SampleError(int64_t index, const std::string& cause);
  int64_t index() const { return index_; }

 private:
  int64_t index_;
};

/// Throws ValueError naming the first index outside [0, size) and its place, or when there are no
/// indices.
void check_indices(std::span<const int64_t> indices, int64_t size);

/// Stacks samples of equal structure, as torch.utils.data.default_collate: tensors are stacked,
/// numbers become tensors (int64, float64, bool), strings become a list, lists and dictionaries are
/// collated entry by entry. Throws ValueError naming the sample's position, the entry's path and
/// what differs (kind, shape, type, device, length, keys); unlike PyTorch's, types are never
/// promoted.
Tree collate(std::span<const Tree> samples);

}  // namespace bellows::data
