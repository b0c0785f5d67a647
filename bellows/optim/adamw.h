// AdamW on LibTorch's fused kernel. Source: "Decoupled Weight Decay Regularization" (Loshchilov,
// Hutter 2019), torch/optim/adamw.py; bit-equal to Python's AdamW(fused=True).
#pragma once

#include <array>

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
};

/// State: step, exp_avg, exp_avg_sq, and max_exp_avg_sq with amsgrad.
class AdamW : public GroupedOptimizer<AdamWOptions> {
 public:
  /// Throws ValueError for options out of PyTorch's ranges, and as NamedStateOptimizer.
  explicit AdamW(NamedTensors parameters, AdamWOptions options = {});
  explicit AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups);
  void step() override;
};

/// Throws ValueError for options out of PyTorch's ranges.
void check(const AdamWOptions& options);
Tree::Dict to_tree(const AdamWOptions& options);
void from_tree(const Tree& saved, AdamWOptions& options);
size_t field_count(const AdamWOptions& options);

}  // namespace bellows::optim
