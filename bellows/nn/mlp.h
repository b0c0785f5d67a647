// A multi-layer perceptron.
#pragma once

#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "bellows/nn/blocks.h"

namespace bellows::nn {

struct MlpOptions {
  int64_t in_features = 784;
  std::vector<int64_t> hidden = {128};  // may be empty: a linear classifier
  int64_t classes = 10;
};

/// [N, ...] with in_features values a sample -> [N, classes]: flatten, then Linear layers
/// (`layers.0`, `layers.1`, …) with ReLU between them. Initial weights are those of the same
/// nn.ModuleList of nn.Linear in Python under the same seed. Throws ValueError for a size below 1.
class MlpImpl : public torch::nn::Cloneable<MlpImpl> {
 public:
  explicit MlpImpl(MlpOptions options = {});
  void reset() override;
  at::Tensor forward(const at::Tensor& input);

 private:
  at::Tensor layer(size_t index, const at::Tensor& x);
  std::vector<Block> blocks();

  MlpOptions options_;
  torch::nn::ModuleList layers_ = nullptr;
};
TORCH_MODULE(Mlp);

}  // namespace bellows::nn
