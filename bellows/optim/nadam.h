// NAdam: Adam with Nesterov's momentum. Sources: "Incorporating Nesterov Momentum into Adam" (Dozat
// 2016), torch/optim/nadam.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct NAdamOptions {
  double lr = 2e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum_decay = 4e-3;
  /// The decay acts on the weights, as AdamW's, instead of on the gradients.
  bool decoupled_weight_decay = false;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: step, mu_product, exp_avg, exp_avg_sq.
class NAdam : public GroupedOptimizer<NAdamOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, NAdamOptions& options);
const StateLayout& state_layout(const NAdamOptions& options);
StateNeeds state_needs(const NAdamOptions& options);

}  // namespace bellows::optim
