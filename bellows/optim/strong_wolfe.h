// A line search for the strong Wolfe conditions. Sources: "Numerical Optimization" (Nocedal, Wright
// 2006), algorithms 3.5 and 3.6, _strong_wolfe in torch/optim/lbfgs.py. For lbfgs.cpp.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace bellows::optim {

/// A point on the line.
struct LinePoint {
  double length = 0;
  double loss = 0;
  at::Tensor gradient;
  double slope = 0;  // gradient times direction
};

struct LineSearch {
  /// The loss and its gradient at that length.
  std::function<LinePoint(double length)> evaluate;
  double largest_entry = 0;  // of the direction
  double tolerance_change = 1e-9;
  int64_t most_iterations = 25;
};

/// From `start` (length 0) with `length` as the first try: where the loss has fallen enough and the
/// slope is small, or the best point found. `evaluations` receives how often the loss was computed.
LinePoint strong_wolfe(const LineSearch& search, const LinePoint& start, double length,
                       int64_t& evaluations);

}  // namespace bellows::optim
