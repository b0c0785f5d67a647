// Adamax. Sources: "Adam: A Method for Stochastic Optimization" (Kingma, Ba 2015),
// torch/optim/adamax.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct AdamaxOptions {
  double lr = 2e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: step, exp_avg, exp_inf.
class Adamax : public GroupedOptimizer<AdamaxOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, AdamaxOptions& options);
const StateLayout& state_layout(const AdamaxOptions& options);
StateNeeds state_needs(const AdamaxOptions& options);

}  // namespace bellows::optim
