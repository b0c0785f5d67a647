// Adam. Sources: "Adam: A Method for Stochastic Optimization" (Kingma, Ba 2015), "On the
// Convergence of Adam and Beyond" (Reddi, Kale, Kumar 2018) for amsgrad, torch/optim/adam.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  /// The decay acts on the weights, as AdamW's, instead of on the gradients.
  bool decoupled_weight_decay = false;
  Implementation implementation = Implementation::automatic;
};

/// State: step, exp_avg, exp_avg_sq, and max_exp_avg_sq with amsgrad.
class Adam : public GroupedOptimizer<AdamOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, AdamOptions& options);
const StateLayout& state_layout(const AdamOptions& options);
StateNeeds state_needs(const AdamOptions& options);

}  // namespace bellows::optim
