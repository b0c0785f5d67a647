// Averaged stochastic gradient descent. Sources: "Acceleration of Stochastic Approximation by
// Averaging" (Polyak, Juditsky 1992), torch/optim/asgd.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct ASGDOptions {
  double lr = 1e-2;
  double lambd = 1e-4;
  double alpha = 0.75;
  /// The step from which on the weights are averaged.
  double t0 = 1e6;
  double weight_decay = 0;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: step, eta, mu, ax; ax is the average of the weights.
class ASGD : public GroupedOptimizer<ASGDOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, ASGDOptions& options);
const StateLayout& state_layout(const ASGDOptions& options);
StateNeeds state_needs(const ASGDOptions& options);

}  // namespace bellows::optim
