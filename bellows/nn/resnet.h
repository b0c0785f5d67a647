// ResNet-18. Source: "Deep Residual Learning for Image Recognition" (He et al. 2015), in the form
// of torchvision/models/resnet.py, whose names, initial weights and results it has.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "bellows/nn/blocks.h"

namespace bellows::nn {

struct ResNet18Options {
  int64_t in_channels = 3;
  int64_t classes = 1000;
  bool channels_last = false;  // faster on CPUs and, in half precision, on GPUs
};

/// Two 3x3 convolutions with batch norm and a way around them: torchvision's BasicBlock.
class BasicBlockImpl : public torch::nn::Cloneable<BasicBlockImpl> {
 public:
  BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride);
  void reset() override;
  at::Tensor forward(const at::Tensor& input);

 private:
  int64_t in_channels_, channels_, stride_;
  torch::nn::Conv2d conv1_ = nullptr, conv2_ = nullptr;
  torch::nn::BatchNorm2d bn1_ = nullptr, bn2_ = nullptr;
  torch::nn::Sequential downsample_ = nullptr;  // only where the shape changes
};
TORCH_MODULE(BasicBlock);

/// [N, in_channels, H, W] -> [N, classes]. Throws ValueError for a size below 1.
class ResNet18Impl : public torch::nn::Cloneable<ResNet18Impl> {
 public:
  explicit ResNet18Impl(ResNet18Options options = {});
  void reset() override;
  at::Tensor forward(const at::Tensor& input);

 private:
  std::vector<Block> blocks();

  ResNet18Options options_;
  torch::nn::Conv2d conv1_ = nullptr;
  torch::nn::BatchNorm2d bn1_ = nullptr;
  torch::nn::Sequential layer1_ = nullptr, layer2_ = nullptr, layer3_ = nullptr, layer4_ = nullptr;
  torch::nn::Linear fc_ = nullptr;
};
TORCH_MODULE(ResNet18);

}  // namespace bellows::nn
