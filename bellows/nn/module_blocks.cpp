#include "bellows/nn/module_blocks.h"

#include <algorithm>

namespace bellows::nn {

std::vector<Block> sequential_blocks(const torch::nn::Sequential& modules, size_t group) {
  std::vector<Block> blocks;
  const std::vector<torch::nn::AnyModule> all(modules->begin(), modules->end());
  for (size_t start = 0; start < all.size(); start += group) {
    const std::vector<torch::nn::AnyModule> own(
        all.begin() + static_cast<std::ptrdiff_t>(start),
        all.begin() + static_cast<std::ptrdiff_t>(std::min(start + group, all.size())));
    Block block{[own](at::Tensor x) {
                  for (torch::nn::AnyModule module : own) x = module.forward(x);
                  return x;
                },
                {}};
    for (const torch::nn::AnyModule& module : own)
      for (const at::Tensor& buffer : module.ptr()->buffers()) block.buffers.push_back(buffer);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace bellows::nn
