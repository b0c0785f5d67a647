// AdamW: Adam with decoupled weight decay. Sources: "Decoupled Weight Decay Regularization"
// (Loshchilov, Hutter 2019), torch/optim/adamw.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: step, exp_avg, exp_avg_sq, and max_exp_avg_sq with amsgrad.
class AdamW : public GroupedOptimizer<AdamWOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, AdamWOptions& options);
const StateLayout& state_layout(const AdamWOptions& options);
StateNeeds state_needs(const AdamWOptions& options);

}  // namespace bellows::optim
