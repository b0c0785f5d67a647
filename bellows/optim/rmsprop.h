// RMSprop. Sources: Hinton's lecture 6 of "Neural Networks for Machine Learning", "Generating
// Sequences With Recurrent Neural Networks" (Graves 2013) for centered, torch/optim/rmsprop.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: step, square_avg, momentum_buffer where momentum is above 0, grad_avg with centered.
class RMSprop : public GroupedOptimizer<RMSpropOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, RMSpropOptions& options);
const StateLayout& state_layout(const RMSpropOptions& options);
StateNeeds state_needs(const RMSpropOptions& options);

}  // namespace bellows::optim
