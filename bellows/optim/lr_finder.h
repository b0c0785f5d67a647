// A learning rate by a range test: the rate rises from step to step until the loss diverges.
// Source: "Cyclical Learning Rates for Training Neural Networks" (Smith 2017), section 3.3.
#pragma once

#include <optional>
#include <vector>

#include "bellows/optim/optimizer.h"

namespace bellows::optim {

struct LRFinderOptions {
  double start_lr = 1e-7;
  double end_lr = 10;
  int64_t steps = 100;
  /// How much of the smoothed loss is kept at each step.
  double smoothing = 0.9;
  /// The test ends once the smoothed loss is so many times the smallest, or not finite.
  double divergence = 4;
  /// The suggestion leaves out so many of the first and last steps.
  int64_t skip_begin = 10;
  int64_t skip_end = 1;
};

struct LRFinderResult {
  std::vector<double> lrs;
  std::vector<double> losses;  // smoothed, corrected for their start at 0
  bool diverged = false;
  /// Where the smoothed loss falls most steeply over the logarithm of the rate; nothing where there
  /// are too few steps, or it never falls.
  std::optional<double> suggestion;
};

/// Up to `steps` steps: `closure` computes loss and gradients for the next batch, as for
/// Optimizer::step. The first group gets the rate; other groups keep their proportion to it.
/// Afterwards, also after an error, `tensors` (the model's parameters and buffers) and the
/// optimizer are as before, and gradients are dropped; batches and random numbers that were drawn
/// stay drawn. Waits for the device at each step. Throws ValueError for options out of range, and a
/// first group whose rate is 0 where there are several.
LRFinderResult find_lr(Optimizer& optimizer, const NamedTensors& tensors,
                       const LossClosure& closure, const LRFinderOptions& options = {});

}  // namespace bellows::optim
