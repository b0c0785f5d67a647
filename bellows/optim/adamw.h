// AdamW on LibTorch's fused kernel. Source: "Decoupled Weight Decay Regularization" (Loshchilov, Hutter 2019),
// torch/optim/adamw.py; bit-equal to Python's AdamW(fused=True).
#pragma once

#include <array>

#include "bellows/optim/optimizer.h"

namespace bellows::optim {

struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
};

class AdamW : public Optimizer {
 public:
  /// Throws ValueError for options out of PyTorch's ranges, no parameters, a name used twice, a tensor in
  /// two groups, an integer parameter, or one that is not a leaf.
  explicit AdamW(NamedTensors parameters, AdamWOptions options = {});
  explicit AdamW(std::vector<ParamGroup<AdamWOptions>> groups);
  ~AdamW() override;
  // Optimizer's members, and `options(group)`: see optimizer.h; the optimizer's author completes this part.
};

}  // namespace bellows::optim
