// PowerSGD: gradients as products of two thin matrices, with what that loses added to the next
// step's (Vogels, Karimireddy and Jaggi, arXiv 1905.13727). Source of names, defaults and numbers:
// torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py.
#pragma once

#include <cstdint>
#include <memory>

#include "bellows/parallel/comm_hook.h"
#include "bellows/tree/stateful.h"

namespace bellows::parallel {

struct PowerSgdOptions {
  /// Of the products; the higher, the more exact and the more bytes.
  int64_t matrix_approximation_rank = 1;
  /// Before this iteration buckets are averaged whole; above 1 with error feedback or warm start,
  /// as buckets are made anew after the first.
  int64_t start_power_sgd_iter = 1000;
  /// Tensors that would shrink by less are averaged whole.
  double min_compression_rate = 2;
  bool use_error_feedback = true;
  /// Begins with the factors of the iteration before.
  bool warm_start = true;
  /// Added to the norm of each column; above 0 for gradients with columns of zeros.
  double orthogonalization_epsilon = 0;
  uint64_t random_seed = 0;
};

/// One for each DistributedDataParallel. As a part of a checkpoint it keeps what was lost so far,
/// this rank's own, and the factors: resuming needs the bucket layout as well (DdpCore).
class PowerSgd : public Stateful {
 public:
  /// Throws ValueError for options out of range.
  explicit PowerSgd(PowerSgdOptions options = {});
  ~PowerSgd() override;
  /// The hook; it shares this object's state.
  CommHook hook() const;
  /// Values before compression for one after it, since the start; 0 before the first compression.
  double compression_rate() const;
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace bellows::parallel
