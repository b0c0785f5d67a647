// RAdam: Adam with a rectified rate. Sources: "On the Variance of the Adaptive Learning Rate and
// Beyond" (Liu et al. 2020), torch/optim/radam.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct RAdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  /// The decay acts on the weights, as AdamW's, instead of on the gradients.
  bool decoupled_weight_decay = false;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: step, exp_avg, exp_avg_sq.
class RAdam : public GroupedOptimizer<RAdamOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, RAdamOptions& options);
const StateLayout& state_layout(const RAdamOptions& options);
StateNeeds state_needs(const RAdamOptions& options);

}  // namespace bellows::optim
