// What GradScaler needs of an optimizer, Bellows' or LibTorch's. For the sources of amp.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/optim/optimizer.h"

namespace bellows::amp {

struct ScaledOptimizer {
  const void* identity = nullptr;
  std::vector<at::Tensor> parameters = {};  // of all groups, in order
  std::function<std::string(size_t)> name;  // of parameters[i]
  std::function<void()> step;
  bool needs_closure = false;  // LBFGS
};

/// Both refer to the optimizer.
ScaledOptimizer scaled(optim::Optimizer& optimizer);
ScaledOptimizer scaled(torch::optim::Optimizer& optimizer);

}  // namespace bellows::amp
