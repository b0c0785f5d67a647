// Post-local SGD: gradients are averaged over all ranks at first, later over none or few, and the
// parameters of all ranks now and then (Lin, Stich, Patel and Jaggi, arXiv 1808.07217). Source of
// names, defaults and behaviour: torch/distributed/algorithms/ddp_comm_hooks/post_localSGD_hook.py
// and model_averaging/averagers.py.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "bellows/parallel/comm_hook.h"
#include "bellows/tree/stateful.h"
#include "bellows/tree/tree.h"

namespace bellows::parallel {

struct PostLocalSgdOptions {
  /// Before this iteration gradients are averaged over all ranks.
  int64_t start_local_sgd_iter = 100;
  /// Afterwards over these, for example those of one machine; nothing: not at all, each rank keeps
  /// its own.
  std::optional<Group> subgroup = {};
};

/// One for each DistributedDataParallel; the iteration is counted in `state`, part of a checkpoint.
class PostLocalSgd : public Stateful {
 public:
  explicit PostLocalSgd(PostLocalSgdOptions options = {});
  /// The hook; it shares this object's count.
  CommHook hook() const;
  int64_t iteration() const { return *iteration_; }
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  PostLocalSgdOptions options_;
  std::shared_ptr<int64_t> iteration_ = std::make_shared<int64_t>(0);
};

/// Averages parameters over a group, every `period` steps from step `warmup_steps` on.
class PeriodicModelAverager : public Stateful {
 public:
  /// Throws ValueError for a period below 1 or negative warmup_steps.
  PeriodicModelAverager(Group group, int64_t period, int64_t warmup_steps = 0);
  /// Call it after each optimizer step, on all ranks; collective in the steps that average. True
  /// where this one did.
  bool average_parameters(const NamedTensors& parameters);
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  Group group_;
  int64_t period_, warmup_steps_;
  int64_t step_ = 0;
};

}  // namespace bellows::parallel
