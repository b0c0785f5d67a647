// From a dataset and a sampler to batches, read ahead on threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/data/batch_sampler.h"
#include "bellows/data/dataset.h"
#include "bellows/data/sampler.h"
#include "bellows/data/stream.h"
#include "bellows/tree/stateful.h"

namespace bellows::data {

/// A batch: the samples' tensors with a first dimension of `samples`.
struct Batch {
  Tree data;
  int64_t samples = 0;
};

/// A sample that was left out (OnError::skip).
struct SkippedSample {
  int64_t index = 0;
  std::string reason;
};

/// What a loader has done since it was made.
struct LoaderReport {
  int64_t batches = 0;
  /// Seconds the consumer waited inside `next`; with no workers, all of the reading.
  double wait_seconds = 0;
  /// Samples left out of the batches consumed, and the first 100 of them.
  int64_t skipped = 0;
  std::vector<SkippedSample> first_skipped;
  BatchMemory::Stats memory;
};

/// Gives batches epoch after epoch, beginning with epoch 0. One consumer thread. `state_dict`
/// counts what was consumed, never what was prefetched: after `load_state_dict` the next batch is
/// the one that would have come, with whatever number of workers, and of ranks where the batch size
/// of all ranks together is the same. A state is refused when that, the dataset's size or the
/// epoch's order are not those it was saved with.
class Loader : public Stateful {
 public:
  /// Batches and samples in one epoch (drop_last counted in; samples that are skipped not counted
  /// out).
  virtual int64_t batches() const = 0;
  virtual int64_t samples() const = 0;
  virtual int64_t batch_size() const = 0;

  /// Goes to batch `first_batch` of `epoch`. Legal at any moment, also in the middle of an epoch;
  /// waits for nothing. `first_batch` == batches() goes to the epoch's end. Throws ValueError, with
  /// nothing changed, when out of range.
  virtual void start(int64_t epoch, int64_t first_batch = 0) = 0;
  /// The next batch of the epoch; nothing at its end, and again on every call until `start`. The
  /// batch is the caller's to keep; its memory is used again once its tensors are gone. When it
  /// throws the position stays: the call may be repeated, or `start` can skip. Throws SampleError
  /// and TimeoutError.
  virtual std::optional<Batch> next() = 0;
  /// Where the next batch comes from: the epoch, and how many of its batches were consumed.
  virtual int64_t epoch() const = 0;
  virtual int64_t position() const = 0;

  virtual LoaderReport report() const { return {}; }
};

/// What happens when a sample cannot be read, or does not go with the others of its batch.
enum class OnError {
  /// `next` throws a SampleError when it comes to that batch.
  raise,
  /// The batch comes without it; a batch without any sample does not come. Counted in `report`, and
  /// logged the first time.
  skip,
};

/// Changes a whole batch, on the thread that made it; `random` depends on (seed, epoch, number of
/// the batch) alone.
using BatchTransform = std::function<Tree(Tree batch, Random& random)>;

struct LoaderOptions {
  int64_t batch_size = 1;
  /// Leaves out an epoch's last batch where it is smaller than the others.
  bool drop_last = false;
  /// Threads that prepare batches ahead; 0: the calling thread does it. Changes no value. They are
  /// started once, and use one thread of LibTorch's each.
  int64_t workers = 0;
  /// Batches that a worker prepares ahead: ready or in preparation are at most workers x prefetch.
  int64_t prefetch = 2;
  /// Whether batches come in the sampler's order, or (with workers) whichever is ready first.
  bool in_order = true;
  /// How long `next` waits for a batch before it throws a TimeoutError that says what the workers
  /// are reading; 0: for ever. Without workers nothing can watch over a sample, and this has no
  /// effect.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// How long destruction waits for workers in the middle of a sample. One that takes longer is
  /// left behind: it ends by itself after that sample, and keeps the dataset alive until then.
  std::chrono::milliseconds stop_timeout = std::chrono::seconds(10);
  OnError on_error = OnError::raise;
  /// Passed to samples' and batches' transforms.
  uint64_t seed = 0;
  /// Fills up tensors of different sizes with this value: see CollateOptions.
  std::optional<double> pad = std::nullopt;
  /// In place of data::collate.
  Collate collate = nullptr;
  BatchTransform on_batch = nullptr;
  /// Where batches' memory comes from, null: LibTorch's for the CPU. See BatchMemory.
  c10::Allocator* memory = nullptr;
};

/// Reads whole batches from a BatchDataset, else sample by sample. Throws ValueError for a null
/// dataset or sampler, options out of range, an epoch that would have no batch (but for a rank of
/// several), and a sampler whose indices the dataset does not have.
std::unique_ptr<Loader> make_loader(std::shared_ptr<const Dataset> dataset,
                                    std::shared_ptr<const Sampler> sampler, LoaderOptions options);
/// Batches as the sampler says; batch_size and drop_last must be left at their defaults.
std::unique_ptr<Loader> make_loader(std::shared_ptr<const Dataset> dataset,
                                    std::shared_ptr<const BatchSampler> sampler,
                                    LoaderOptions options);
/// Records in the stream's order.
std::unique_ptr<Loader> make_loader(std::shared_ptr<const StreamDataset> stream,
                                    LoaderOptions options);

}  // namespace bellows::data
