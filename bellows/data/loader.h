// From a dataset and a sampler to batches.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "bellows/data/dataset.h"
#include "bellows/data/sampler.h"
#include "bellows/tree/stateful.h"

namespace bellows::data {

/// A batch: the samples' tensors with a first dimension of `samples`.
struct Batch {
  Tree data;
  int64_t samples = 0;
};

/// Gives batches epoch after epoch, beginning with epoch 0. One consumer thread. `state_dict`
/// counts what was consumed, never what was prefetched: after `load_state_dict` the next batch is
/// the one that would have come. A state is refused when batch size, drop_last, dataset size or the
/// epoch's order are not those it was saved with.
class Loader : public Stateful {
 public:
  /// Batches and samples in one epoch (drop_last counted in).
  virtual int64_t batches() const = 0;
  virtual int64_t samples() const = 0;
  virtual int64_t batch_size() const = 0;

  /// Goes to batch `first_batch` of `epoch`. Legal at any moment, also in the middle of an epoch;
  /// `first_batch` == batches() goes to the epoch's end. Throws ValueError, with nothing changed,
  /// when out of range.
  virtual void start(int64_t epoch, int64_t first_batch = 0) = 0;
  /// The next batch of the epoch; nothing at its end, and again on every call until `start`. The
  /// batch is the caller's to keep. When it throws the position stays: the call may be repeated, or
  /// `start` can skip.
  virtual std::optional<Batch> next() = 0;
  /// Where the next batch comes from.
  virtual int64_t epoch() const = 0;
  virtual int64_t position() const = 0;
};

struct LoaderOptions {
  int64_t batch_size = 1;
  /// Leaves out an epoch's last batch where it is smaller than the others.
  bool drop_last = false;
  /// Threads that prepare batches ahead, in order; 0: the calling thread does it. Changes no value.
  int64_t workers = 0;
};

/// Loads whole batches by index through Dataset::get_batch. Throws ValueError for a null dataset or
/// sampler, a batch size below 1, a negative number of workers, an epoch that would have no batch,
/// and a sampler whose indices the dataset does not have.
std::unique_ptr<Loader> make_loader(std::shared_ptr<const Dataset> dataset,
                                    std::shared_ptr<const Sampler> sampler, LoaderOptions options);

}  // namespace bellows::data
