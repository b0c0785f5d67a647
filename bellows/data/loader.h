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

/// Gives batches epoch after epoch. One consumer thread. `state_dict` counts what was consumed, never what
/// was prefetched: after `load_state_dict` the next batch is the one that would have come.
class Loader : public Stateful {
 public:
  /// Batches and samples in one epoch (drop_last counted in).
  virtual int64_t batches() const = 0;
  virtual int64_t samples() const = 0;
  virtual int64_t batch_size() const = 0;

  /// Goes to batch `first_batch` of `epoch`. Legal at any moment, also in the middle of an epoch.
  virtual void start(int64_t epoch, int64_t first_batch = 0) = 0;
  /// The next batch of the epoch, or nothing at its end. The batch is the caller's to keep.
  virtual std::optional<Batch> next() = 0;
  /// Where the next batch comes from.
  virtual int64_t epoch() const = 0;
  virtual int64_t position() const = 0;
};

struct LoaderOptions {
  int64_t batch_size = 1;
  bool drop_last = false;
};

/// Loads in the calling thread, whole batches by index through Dataset::get_batch: for data in memory, where
/// a copy is all there is to do. Throws ValueError for a batch size below 1 or a sampler that is null.
std::unique_ptr<Loader> make_loader(std::shared_ptr<const Dataset> dataset,
                                    std::shared_ptr<const Sampler> sampler, LoaderOptions options);

}  // namespace bellows::data
