// Lion. Source: "Symbolic Discovery of Optimization Algorithms" (Chen et al. 2023), algorithm 2.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct LionOptions {
  double lr = 1e-4;
  std::array<double, 2> betas = {0.9, 0.99};
  /// Decoupled, as AdamW's.
  double weight_decay = 0;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: exp_avg.
class Lion : public GroupedOptimizer<LionOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, LionOptions& options);
const StateLayout& state_layout(const LionOptions& options);
StateNeeds state_needs(const LionOptions& options);

}  // namespace bellows::optim
