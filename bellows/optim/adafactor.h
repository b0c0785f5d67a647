// Adafactor, whose memory for matrices grows with rows plus columns. Sources: "Adafactor: Adaptive
// Learning Rates with Sublinear Memory Cost" (Shazeer, Stern 2018), torch/optim/_adafactor.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct AdafactorOptions {
  double lr = 1e-2;
  double beta2_decay = -0.8;
  /// The first: the smallest positive number that 1 plus it is above 1, in the parameter's type.
  std::pair<std::optional<double>, double> eps = {std::nullopt, 1e-3};
  double d = 1.0;
  double weight_decay = 0;
  bool maximize = false;
  /// `automatic` is `single` here, as it needs least memory.
  Implementation implementation = Implementation::automatic;
};

/// State: step; row_var and col_var of parameters with two or more dimensions, else variance. A
/// step waits for the device twice, for each list of parameters.
class Adafactor : public GroupedOptimizer<AdafactorOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, AdafactorOptions& options);
const StateLayout& state_layout(const AdafactorOptions& options);
StateNeeds state_needs(const AdafactorOptions& options);

}  // namespace bellows::optim
