// LAMB, for large batches. Source: "Large Batch Optimization for Deep Learning: Training BERT in 76
// minutes" (You et al. 2020), algorithm 2 with the identity as phi.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct LAMBOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 1e-2;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: step, exp_avg, exp_avg_sq. The trust ratio is 1 where the weights or the step are all 0.
class LAMB : public GroupedOptimizer<LAMBOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, LAMBOptions& options);
const StateLayout& state_layout(const LAMBOptions& options);
StateNeeds state_needs(const LAMBOptions& options);

}  // namespace bellows::optim
