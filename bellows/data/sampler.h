// The order in which a dataset's samples are visited. An order is a pure function of the epoch, so
// that a run can resume at any batch by skipping, without stored random state.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace bellows::data {

/// Immutable and thread-safe; no sampler touches the global generator.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Number of indices per epoch.
  virtual int64_t size() const = 0;
  /// The order of epoch `epoch` >= 0 (else ValueError). Always the same for the same epoch.
  virtual std::vector<int64_t> indices(int64_t epoch) const = 0;

  /// Among how many ranks the order is dealt out; and the order that is dealt out, the same on all
  /// of them (here: this sampler's own). What loaders need to resume with another number of ranks.
  virtual int64_t world_size() const { return 1; }
  virtual int64_t global_size() const { return size(); }
  virtual std::vector<int64_t> global_indices(int64_t epoch) const { return indices(epoch); }
};

/// 0, 1, …, size-1.
class SequentialSampler : public Sampler {
 public:
  /// Throws ValueError for a negative size.
  explicit SequentialSampler(int64_t size);
  int64_t size() const override { return size_; }
  std::vector<int64_t> indices(int64_t epoch) const override;

 private:
  int64_t size_;
};

/// Every index once: torch.randperm(size) of a CPU generator seeded with seed + epoch, as
/// torch.utils.data.DistributedSampler does (torch/utils/data/distributed.py). The sum wraps at
/// 2^64. With replacement: `samples` draws of torch.randint(size) from that generator, in pieces of
/// 32, as torch.utils.data.RandomSampler(replacement=True) draws from the generator it is given.
class RandomSampler : public Sampler {
 public:
  /// Throws ValueError for a negative size.
  RandomSampler(int64_t size, uint64_t seed);
  /// `samples` indices an epoch. Throws ValueError for a negative number or nothing to draw from.
  static RandomSampler with_replacement(int64_t size, int64_t samples, uint64_t seed);
  int64_t size() const override { return samples_; }
  std::vector<int64_t> indices(int64_t epoch) const override;

 private:
  int64_t size_;
  int64_t samples_;
  bool replacement_ = false;
  uint64_t seed_;
};

/// The order that Python's DataLoader(shuffle=True, generator=Generator().manual_seed(seed)) has in
/// its epoch-th loop, to compare with it: each loop, run to its end, draws a seed for its
/// workers and two permutations from the one generator, and uses the first. Costs all permutations
/// up to that epoch.
class DataLoaderSampler : public Sampler {
 public:
  /// Throws ValueError for a negative size.
  DataLoaderSampler(int64_t size, uint64_t seed);
  int64_t size() const override { return size_; }
  std::vector<int64_t> indices(int64_t epoch) const override;

 private:
  int64_t size_;
  uint64_t seed_;
};

/// `samples` draws with the given probabilities, which need not add up to 1: torch.multinomial of a
/// generator seeded with seed + epoch, as torch.utils.data.WeightedRandomSampler.
class WeightedRandomSampler : public Sampler {
 public:
  /// Throws ValueError for no weights, one that is negative or not finite, none above 0, more than
  /// 2^24 of them (multinomial's limit), a negative number of samples, and, without replacement,
  /// more samples than there are weights above 0.
  WeightedRandomSampler(std::vector<double> weights, int64_t samples, bool replacement,
                        uint64_t seed);
  int64_t size() const override { return samples_; }
  std::vector<int64_t> indices(int64_t epoch) const override;

 private:
  std::vector<double> weights_;
  int64_t samples_;
  bool replacement_;
  uint64_t seed_;
};

/// The given indices: in their order, or (with a seed) in that of torch.randperm of seed + epoch,
/// as torch.utils.data.SubsetRandomSampler.
class SubsetSampler : public Sampler {
 public:
  explicit SubsetSampler(std::vector<int64_t> indices) : subset_(std::move(indices)) {}
  SubsetSampler(std::vector<int64_t> indices, uint64_t seed)
      : subset_(std::move(indices)), shuffle_(true), seed_(seed) {}
  int64_t size() const override { return static_cast<int64_t>(subset_.size()); }
  std::vector<int64_t> indices(int64_t epoch) const override;

 private:
  std::vector<int64_t> subset_;
  bool shuffle_ = false;
  uint64_t seed_ = 0;
};

}  // namespace bellows::data
