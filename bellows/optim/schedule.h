// Learning-rate schedules in closed form: the factor at a step is a function of the step alone, so
// that nothing has to be saved, and a resumed run has the same rates.
#pragma once

#include <cstdint>

namespace bellows::optim {

class Schedule {
 public:
  virtual ~Schedule() = default;
  /// What the initial learning rate is multiplied by at step `step` (0 is the first).
  virtual double factor(int64_t step) const = 0;
};

/// From start_factor to end_factor in a straight line over total_iters steps, then constant.
/// Source: LinearLR in torch/optim/lr_scheduler.py, whose defaults these are.
struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  int64_t total_iters = 5;
};

class LinearLR : public Schedule {
 public:
  /// Throws ValueError for factors outside of PyTorch's ranges (start in (0, 1], end in [0, 1]) or
  /// total_iters < 1.
  explicit LinearLR(LinearLROptions options = {});
  double factor(int64_t step) const override;

 private:
  LinearLROptions options_;
};

}  // namespace bellows::optim
