// Which samples make up which batch. Like an order, a pure function of the epoch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bellows/data/sampler.h"
#include "bellows/tree/tree.h"

namespace bellows::data {

/// The batches of one epoch, one after the other.
struct BatchList {
  std::vector<int64_t> indices;
  /// Where each batch ends in `indices`.
  std::vector<int64_t> ends;

  int64_t size() const { return static_cast<int64_t>(ends.size()); }
  std::span<const int64_t> operator[](int64_t batch) const {
    const int64_t begin = batch == 0 ? 0 : ends[static_cast<size_t>(batch - 1)];
    return std::span(indices).subspan(
        static_cast<size_t>(begin), static_cast<size_t>(ends[static_cast<size_t>(batch)] - begin));
  }
};

/// Immutable and thread-safe. Every epoch has the same number of batches, and of samples.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  /// Batches and samples an epoch, of this rank.
  virtual int64_t size() const = 0;
  virtual int64_t samples() const = 0;
  /// Samples in a whole batch, at most.
  virtual int64_t batch_size() const = 0;
  /// Throws ValueError for a negative epoch.
  virtual BatchList batches(int64_t epoch) const = 0;

  /// Ranks that share the order, which `order_hash` identifies: one with as many samples in a step
  /// of all ranks, and an equal order, can go on where another one was.
  virtual int64_t world_size() const = 0;
  virtual uint64_t order_hash(int64_t epoch) const = 0;
  /// Further settings that must be equal for that, by name: bools and integers.
  virtual Tree::Dict settings() const { return {}; }
  /// Whether this rank may have no batch at all (ranks that are not evened out).
  virtual bool may_be_empty() const { return false; }
};

/// Consecutive samples of an order; the last batch smaller or left out. As
/// torch.utils.data.BatchSampler.
class SequentialBatches : public BatchSampler {
 public:
  /// Throws ValueError for a null sampler and a batch size below 1.
  SequentialBatches(std::shared_ptr<const Sampler> sampler, int64_t batch_size, bool drop_last);
  int64_t size() const override;
  int64_t samples() const override;
  int64_t batch_size() const override { return batch_size_; }
  /// Throws ValueError where the sampler does not give size() indices.
  BatchList batches(int64_t epoch) const override;
  int64_t world_size() const override { return sampler_->world_size(); }
  uint64_t order_hash(int64_t epoch) const override;
  Tree::Dict settings() const override;
  bool may_be_empty() const override { return sampler_->world_size() > 1; }

 private:
  std::shared_ptr<const Sampler> sampler_;
  int64_t batch_size_;
  bool drop_last_;
};

struct LengthBucketOptions {
  /// Samples of a batch, at most.
  int64_t batch_size = 1;
  /// Where above 0: smaller batches where samples are long, so that a batch padded to its longest
  /// sample has at most so many elements. A sample that is longer by itself is refused.
  int64_t max_elements = 0;
  /// Batches' worth of samples, next to each other by length, that are mixed. 1: the least padding,
  /// and the same samples always together.
  int64_t bucket_batches = 50;
  bool shuffle = true;
  uint64_t seed = 0;
  int64_t rank = 0;
  int64_t world_size = 1;
};

/// Batches of samples of nearly the same length. Samples are sorted by length once (equal lengths:
/// by index) and cut into buckets; with `shuffle` every epoch (a function of seed and epoch) mixes
/// each bucket, cuts it into batches and mixes the batches of all buckets. With several ranks
/// a batch of world_size x batch_size is dealt out in turn, and filled up from its own head where
/// it does not come out even: all ranks then have equally many samples of like length in every
/// step.
class LengthBuckets : public BatchSampler {
 public:
  /// `lengths[i]` >= 0 is sample i's. Throws ValueError for no lengths, a negative one, one above
  /// max_elements, options out of range.
  LengthBuckets(std::span<const int64_t> lengths, LengthBucketOptions options);
  int64_t size() const override { return batches_; }
  int64_t samples() const override { return samples_; }
  int64_t batch_size() const override { return options_.batch_size; }
  BatchList batches(int64_t epoch) const override;
  int64_t world_size() const override { return options_.world_size; }
  uint64_t order_hash(int64_t epoch) const override;

 private:
  struct Bucket {
    int64_t begin, end;    // in sorted_
    int64_t global_batch;  // of all ranks
  };
  BatchList global_batches(int64_t epoch) const;

  LengthBucketOptions options_;
  std::vector<int64_t> sorted_;  // indices, by length
  std::vector<Bucket> buckets_;
  int64_t batches_ = 0;
  int64_t samples_ = 0;
};

}  // namespace bellows::data
