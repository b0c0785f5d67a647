// The batches of one epoch, made by number on whatever thread asks: what a loader's workers run.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bellows/data/loader.h"

namespace bellows::data {

/// A batch and what was left out of it.
struct PreparedBatch {
  Batch batch;
  std::vector<SkippedSample> skipped;
};

/// What one thread is at, for whoever waits for it; and the dataset of its own, where it has one.
struct Reading {
  std::atomic<int64_t> batch = -1;
  std::atomic<int64_t> sample = -1;
  std::unique_ptr<Dataset> own;
  bool asked_for_own = false;
};

/// Thrown inside a reader that was cancelled; nobody gets to see it.
struct Cancelled {};

/// Thread-safe.
class BatchReader {
 public:
  BatchReader(const LoaderOptions& options, std::shared_ptr<BatchMemory> memory, Pass pass)
      : options_(options), memory_(std::move(memory)), pass_(pass) {}
  virtual ~BatchReader() = default;
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  /// Numbers are asked for in rising order, and again where one failed. Errors of samples come as
  /// SampleError, those of the environment as they are, all others with the batch named.
  PreparedBatch read(int64_t number, Reading& reading);
  /// Where a sample lies, for messages.
  virtual std::string source(int64_t sample) const = 0;
  /// Makes `read` end at the next sample.
  virtual void cancel() { cancelled_ = true; }

 protected:
  virtual PreparedBatch read_batch(int64_t number, Reading& reading) = 0;
  void check_cancelled() const {
    if (cancelled_) throw Cancelled();
  }
  /// Calls `get` and applies the policy for errors: nothing when the sample was skipped.
  template <class Get>
  std::optional<Tree> sample(PreparedBatch& batch, int64_t index, Get get);
  /// Collates and transforms; `indices` are those of the samples, for messages.
  void finish(PreparedBatch& batch, int64_t number, std::vector<Tree> samples,
              std::vector<int64_t> indices);
  void transform(Batch& batch, int64_t number);
  void skip(PreparedBatch& batch, int64_t index, const std::string& reason) const;

  const LoaderOptions options_;
  const std::shared_ptr<BatchMemory> memory_;
  const Pass pass_;

 private:
  Tree collated(std::span<const Tree> samples) const;
  std::atomic<bool> cancelled_ = false;
};

/// Batches of a map-style dataset by a list of indices.
std::shared_ptr<BatchReader> make_map_reader(std::shared_ptr<const Dataset> dataset,
                                             std::shared_ptr<const BatchList> list,
                                             const LoaderOptions& options,
                                             std::shared_ptr<BatchMemory> memory, Pass pass);
/// Batches of options.batch_size records of a stream, from batch `first` on, without those in
/// `done`.
std::shared_ptr<BatchReader> make_stream_reader(std::shared_ptr<const StreamDataset> stream,
                                                const LoaderOptions& options,
                                                std::shared_ptr<BatchMemory> memory, Pass pass,
                                                int64_t first, std::set<int64_t> done);

}  // namespace bellows::data
