// Stochastic gradient descent with momentum. Source: torch/optim/sgd.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: momentum_buffer, where momentum is not 0. At a parameter's first step it becomes the
/// gradient, without dampening.
class SGD : public GroupedOptimizer<SGDOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, SGDOptions& options);
const StateLayout& state_layout(const SGDOptions& options);
StateNeeds state_needs(const SGDOptions& options);

}  // namespace bellows::optim
