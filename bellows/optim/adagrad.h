// Adagrad. Sources: "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization"
// (Duchi, Hazan, Singer 2011), torch/optim/adagrad.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: step, sum; made at a parameter's first step, where Python makes it at once.
class Adagrad : public GroupedOptimizer<AdagradOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, AdagradOptions& options);
const StateLayout& state_layout(const AdagradOptions& options);
StateNeeds state_needs(const AdagradOptions& options);

}  // namespace bellows::optim
