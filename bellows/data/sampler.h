// The order in which a dataset's samples are visited. An order is a pure function of the epoch, so
// that a run can resume at any batch by skipping, without stored random state.
#pragma once

#include <cstdint>
#include <vector>

namespace bellows::data {

class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Number of indices per epoch.
  virtual int64_t size() const = 0;
  /// The order of epoch `epoch` >= 0 (else ValueError). Always the same for the same epoch; does
  /// not touch the global generator. Thread-safe.
  virtual std::vector<int64_t> indices(int64_t epoch) const = 0;
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
/// 2^64.
class RandomSampler : public Sampler {
 public:
  /// Throws ValueError for a negative size.
  RandomSampler(int64_t size, uint64_t seed);
  int64_t size() const override { return size_; }
  std::vector<int64_t> indices(int64_t epoch) const override;

 private:
  int64_t size_;
  uint64_t seed_;
};

}  // namespace bellows::data
