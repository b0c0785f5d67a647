// Rprop, for gradients of the whole data set. Sources: "A Direct Adaptive Method for Faster
// Backpropagation Learning: The RPROP Algorithm" (Riedmiller, Braun 1993), torch/optim/rprop.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct RpropOptions {
  /// What each weight's step begins with.
  double lr = 1e-2;
  /// By which factor it shrinks and grows.
  std::array<double, 2> etas = {0.5, 1.2};
  /// The smallest and largest.
  std::array<double, 2> step_sizes = {1e-6, 50};
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: step, prev, step_size. A rate that changes after a parameter's first step changes
/// nothing.
class Rprop : public GroupedOptimizer<RpropOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, RpropOptions& options);
const StateLayout& state_layout(const RpropOptions& options);
StateNeeds state_needs(const RpropOptions& options);

}  // namespace bellows::optim
