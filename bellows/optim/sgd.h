// Stochastic gradient descent with momentum on LibTorch's fused kernel. Source: torch/optim/sgd.py;
// bit-equal to Python's SGD(fused=True).
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
};

/// State: momentum_buffer, where momentum is not 0. At a parameter's first step it becomes the
/// gradient, without dampening.
class SGD : public GroupedOptimizer<SGDOptions> {
 public:
  /// Throws ValueError for options out of PyTorch's ranges, and as NamedStateOptimizer.
  explicit SGD(NamedTensors parameters, SGDOptions options = {});
  explicit SGD(const std::vector<ParamGroup<SGDOptions>>& groups);
  void step() override;
};

/// Throws ValueError for options out of PyTorch's ranges.
void check(const SGDOptions& options);
Tree::Dict to_tree(const SGDOptions& options);
void from_tree(const Tree& saved, SGDOptions& options);
size_t field_count(const SGDOptions& options);

}  // namespace bellows::optim
