// Adadelta. Sources: "ADADELTA: An Adaptive Learning Rate Method" (Zeiler 2012),
// torch/optim/adadelta.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct AdadeltaOptions {
  double lr = 1.0;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
  bool maximize = false;
  Implementation implementation = Implementation::automatic;
};

/// State: step, square_avg, acc_delta.
class Adadelta : public GroupedOptimizer<AdadeltaOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, AdadeltaOptions& options);
const StateLayout& state_layout(const AdadeltaOptions& options);
StateNeeds state_needs(const AdadeltaOptions& options);

}  // namespace bellows::optim
