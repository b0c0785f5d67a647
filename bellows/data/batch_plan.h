// The cutting of an epoch's order into batches, and the place reached in it: what is
// saved of it.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "bellows/data/batch_sampler.h"
#include "bellows/tree/stateful.h"

namespace bellows::data {

/// Not thread-safe.
class BatchPlan : public Stateful {
 public:
  /// At epoch 0, batch 0. Throws ValueError for a null sampler, an epoch that would have no batch,
  /// or an order that does not fit the dataset (see go_to).
  BatchPlan(int64_t dataset_size, std::shared_ptr<const BatchSampler> sampler);

  int64_t batches() const { return sampler_->size(); }
  int64_t samples() const { return sampler_->samples(); }
  int64_t batch_size() const { return sampler_->batch_size(); }
  int64_t epoch() const { return epoch_; }
  /// Batches consumed in this epoch.
  int64_t position() const { return first_ + static_cast<int64_t>(ahead_.size()); }
  /// The first batch not consumed, and those after it that are (when not taken in order).
  int64_t first() const { return first_; }
  const std::set<int64_t>& ahead() const { return ahead_; }
  /// The present epoch's; keeps what workers read valid for as long as they hold it.
  const std::shared_ptr<const BatchList>& list() const { return list_; }

  /// Makes batch `position` of `epoch` the next one; `position` == batches() is the epoch's end.
  /// Throws ValueError, with nothing changed, when either is out of range, and when the sampler
  /// gives other than size() batches or an index that the dataset does not have.
  void go_to(int64_t epoch, int64_t position);
  /// Batch `number` was consumed.
  void consume(int64_t number);

  /// Epoch and position, with what they depend on: the batch size of all ranks together, the sizes
  /// of dataset and sampler, and a hash of the epoch's order. A state saved with any other of these
  /// is refused; the number of ranks may differ where the batch size of all together does not.
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  std::shared_ptr<const BatchList> checked_list(int64_t epoch) const;
  int64_t hash(int64_t epoch) const;
  Tree::Dict settings() const;

  int64_t dataset_size_;
  std::shared_ptr<const BatchSampler> sampler_;
  int64_t epoch_ = 0;
  int64_t first_ = 0;
  std::set<int64_t> ahead_;
  std::shared_ptr<const BatchList> list_;
  mutable int64_t hashed_epoch_ = -1;
  mutable int64_t hash_ = 0;
};

}  // namespace bellows::data
