// Map-style datasets: something with a size that gives the sample at an index.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "bellows/core/error.h"
#include "bellows/data/batch_memory.h"
#include "bellows/data/collate.h"
#include "bellows/data/random.h"
#include "bellows/tree/tree.h"

namespace bellows::data {

/// Which pass over the data a sample is read for. What is random in a sample depends on
/// (seed, epoch, index) alone.
struct Pass {
  uint64_t seed = 0;
  int64_t epoch = 0;
  /// The random numbers of the sample at `index`.
  Random random(int64_t index) const { return {seed, epoch, index}; }
};

/// Immutable once built: all members are const and are called from many threads at once. What they
/// return is the caller's to keep and to change: it shares no memory with the dataset or with other
/// calls.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Number of samples; never changes.
  virtual int64_t size() const = 0;

  /// The sample at `index` in [0, size()): for supervised data a list {input, target}. Throws
  /// ValueError when out of range.
  virtual Tree get(int64_t index) const = 0;

  /// The same for one pass, which augmentations differ by; what loaders call. The default is `get`.
  virtual Tree read(int64_t index, const Pass& pass) const;

  /// Several samples as one batch, each tensor with a new first dimension of indices.size(). The
  /// default calls `get` and collates. Throws ValueError for no indices or one out of range (before
  /// any sample is read), SampleError when `get` throws.
  virtual Tree get_batch(std::span<const int64_t> indices) const;

  /// Where the sample lies, for messages: a path, maybe with an entry; empty where there is none.
  /// Never throws.
  virtual std::string source(int64_t index) const;

  /// For readers that are not thread-safe: a dataset of its own for one worker thread, with the
  /// same samples. Null (the default) means that all workers share this one.
  virtual std::unique_ptr<Dataset> for_worker() const { return nullptr; }
};

/// A dataset that reads whole batches faster than one sample after the other: data in memory, a
/// database. Loaders call `read_batch`.
class BatchDataset : public Dataset {
 public:
  /// As `get_batch`, in memory from `memory`.
  virtual Tree read_batch(std::span<const int64_t> indices, const Pass& pass,
                          BatchMemory& memory) const = 0;
  Tree get_batch(std::span<const int64_t> indices) const override;
};

/// Said of what a user's code threw that has no what().
inline constexpr const char* kNoException = "something that is no std::exception was thrown";

/// Reading one sample failed. The message is "sample <index> (<source>): <the message of the
/// cause>", without the source where the cause names it; the cause itself is nested in it
/// (std::rethrow_if_nested).
class SampleError : public Error {
 public:
  SampleError(int64_t index, const std::string& cause, const std::string& source = "");
  int64_t index() const { return index_; }

 private:
  int64_t index_;
};

/// `dataset.read`, with every exception as a SampleError.
Tree read_sample(const Dataset& dataset, int64_t index, const Pass& pass);

/// Throws ValueError naming the first index outside [0, size) and its place, or when there are no
/// indices.
void check_indices(std::span<const int64_t> indices, int64_t size);

}  // namespace bellows::data
