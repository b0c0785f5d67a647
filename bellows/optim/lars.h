// LARS, for large batches. Source: "Large Batch Training of Convolutional Networks" (You, Gitman,
// Ginsburg 2017), algorithm 1.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct LARSOptions {
  double lr = 1e-3;
  double momentum = 0.9;
  double weight_decay = 0;
  /// The paper's eta.
  double trust_coefficient = 1e-3;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: momentum_buffer. A layer's rate is lr times trust_coefficient |w| / (|g| + weight_decay
/// |w|), or lr where the weights or the gradient are all 0.
class LARS : public GroupedOptimizer<LARSOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, LARSOptions& options);
const StateLayout& state_layout(const LARSOptions& options);
StateNeeds state_needs(const LARSOptions& options);

}  // namespace bellows::optim
