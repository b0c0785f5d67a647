// One order dealt out among the ranks of a distributed run.
#pragma once

#include <memory>

#include "bellows/data/sampler.h"

namespace bellows::data {

/// What happens where the samples do not come out even.
enum class Uneven {
  /// Every rank gets ceil(N / R): the head of the order is visited twice (PyTorch's default).
  pad,
  /// Every rank gets ceil((N - R) / R): the tail is left out (PyTorch's drop_last).
  drop,
  /// Nothing twice, nothing left out: the first N mod R ranks get one more. For evaluation; ranks
  /// then differ in their number of samples, so no collective may stand in the loop over batches.
  keep,
};

struct DistributedOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  Uneven uneven = Uneven::pad;
};

/// Rank r visits places r, r + R, r + 2R, … of an order. Order, padding and dropping are those of
/// torch.utils.data.DistributedSampler (torch/utils/data/distributed.py); there is no set_epoch,
/// since the loader says the epoch.
class DistributedSampler : public Sampler {
 public:
  /// Deals out the order of `order`, which must be the same on all ranks (same seed). Throws
  /// ValueError for a null order, world_size < 1 and a rank outside of [0, world_size).
  DistributedSampler(std::shared_ptr<const Sampler> order, DistributedOptions options);
  /// PyTorch's: RandomSampler(size, seed), or in sequence.
  DistributedSampler(int64_t size, DistributedOptions options, bool shuffle = true,
                     uint64_t seed = 0);
  int64_t size() const override { return size_; }
  std::vector<int64_t> indices(int64_t epoch) const override;
  int64_t world_size() const override { return options_.world_size; }
  int64_t global_size() const override { return order_->size(); }
  std::vector<int64_t> global_indices(int64_t epoch) const override;

 private:
  std::shared_ptr<const Sampler> order_;
  DistributedOptions options_;
  int64_t size_ = 0;
};

}  // namespace bellows::data
