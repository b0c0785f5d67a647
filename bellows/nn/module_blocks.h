// Rows of blocks made of modules.
#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include "bellows/nn/blocks.h"

namespace bellows::nn {

/// A block that calls the module's forward.
template <class M>
Block module_block(const std::shared_ptr<M>& module) {
  return {[module](const at::Tensor& x) { return module->forward(x); }, module->buffers()};
}

/// One block for every `group` modules of a Sequential, whose forwards take one tensor and give
/// one; the last may have fewer.
std::vector<Block> sequential_blocks(const torch::nn::Sequential& modules, size_t group = 1);

}  // namespace bellows::nn
