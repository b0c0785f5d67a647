// A small convolution net for small images.
#pragma once

#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace bellows::nn {

struct ConvNetOptions {
  int64_t in_channels = 1;
  std::vector<int64_t> channels = {32, 64, 128};  // one block each
  int64_t classes = 10;
  bool channels_last = true;  // twice as fast on CPUs; the values in a checkpoint are the same
};

/// [N, in_channels, H, W] -> [N, classes]. `features` is, for each entry of channels, Conv2d(3x3,
/// padding 1, no bias), MaxPool2d(2), BatchNorm2d, ReLU; then AdaptiveAvgPool2d(3), which leaves
/// the 3x3 of 28x28 images and three blocks as it is, and a Linear layer `classifier`. Pooling
/// comes first in a block because batch norm and ReLU then work on a quarter of the values. H and W
/// must be at least 2^blocks. Names and initial weights are those of the same nn.Sequential and
/// nn.Linear in Python under the same seed. Throws ValueError for a size below 1 and for no
/// channels.
class ConvNetImpl : public torch::nn::Cloneable<ConvNetImpl> {
 public:
  explicit ConvNetImpl(ConvNetOptions options = {});
  void reset() override;
  at::Tensor forward(const at::Tensor& input);

 private:
  ConvNetOptions options_;
  torch::nn::Sequential features_ = nullptr;
  torch::nn::Linear classifier_ = nullptr;
};
TORCH_MODULE(ConvNet);

}  // namespace bellows::nn
