// The cutting of an epoch's order into batches, and the place reached in it: what every loader does
// the same way, whether it loads in the calling thread or ahead of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bellows/data/sampler.h"
#include "bellows/tree/stateful.h"

namespace bellows::data {

/// Not thread-safe; spans given by `batch` live until the next call of `go_to` or
/// `load_state_dict`.
class BatchPlan : public Stateful {
 public:
  /// At epoch 0, batch 0. Throws ValueError for a null sampler, a batch size below 1, an epoch that
  /// would have no batch, or an order that does not fit the dataset (see go_to).
  BatchPlan(int64_t dataset_size, std::shared_ptr<const Sampler> sampler, int64_t batch_size,
            bool drop_last);

  /// Batches and samples in one epoch (drop_last counted in).
  int64_t batches() const;
  int64_t samples() const;
  int64_t batch_size() const { return batch_size_; }
  int64_t epoch() const { return epoch_; }
  int64_t position() const { return position_; }

  /// Makes batch `position` of `epoch` the next one; `position` == batches() is the epoch's end.
  /// Throws ValueError, with nothing changed, when either is out of range, and when the sampler
  /// gives other than size() indices or one that the dataset does not have.
  void go_to(int64_t epoch, int64_t position);
  /// The indices of one batch of the present epoch, `batch` in [0, batches()).
  std::span<const int64_t> batch(int64_t batch) const;
  /// One more batch was consumed.
  void advance() { ++position_; }

  /// Epoch and position, with what they depend on: batch size, drop_last, the sizes of dataset and
  /// sampler, and a hash of the epoch's order. A state saved with any other of these is refused.
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  std::vector<int64_t> checked_order(int64_t epoch) const;
  Tree settings() const;

  int64_t dataset_size_;
  std::shared_ptr<const Sampler> sampler_;
  int64_t batch_size_;
  bool drop_last_;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  std::vector<int64_t> order_;
};

}  // namespace bellows::data
