#include "bellows/nn/resnet.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/nn/init.h>

#include "bellows/nn/builtin.h"
#include "bellows/nn/from_module.h"
#include "bellows/nn/memory_format.h"
#include "bellows/nn/module_blocks.h"
#include "bellows/nn/sizes.h"

namespace bellows::nn {
namespace {

torch::nn::Conv2d convolution(int64_t from, int64_t to, int64_t size, int64_t stride,
                              int64_t padding) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(from, to, size).stride(stride).padding(padding).bias(false));
}

torch::nn::Sequential layer(int64_t from, int64_t to, int64_t stride) {
  torch::nn::Sequential out;
  out->push_back(BasicBlock(from, to, stride));
  out->push_back(BasicBlock(to, to, 1));
  return out;
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride)
    : in_channels_(in_channels), channels_(channels), stride_(stride) {
  reset();
}

void BasicBlockImpl::reset() {
  conv1_ = register_module("conv1", convolution(in_channels_, channels_, 3, stride_, 1));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(channels_));
  conv2_ = register_module("conv2", convolution(channels_, channels_, 3, 1, 1));
  bn2_ = register_module("bn2", torch::nn::BatchNorm2d(channels_));
  downsample_ = nullptr;
  if (stride_ == 1 && in_channels_ == channels_) return;
  downsample_ = register_module("downsample", torch::nn::Sequential());
  downsample_->push_back(convolution(in_channels_, channels_, 1, stride_, 0));
  downsample_->push_back(torch::nn::BatchNorm2d(channels_));
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& input) {
  at::Tensor x = bn1_->forward(conv1_->forward(input)).relu_();
  x = bn2_->forward(conv2_->forward(x));
  x += downsample_.is_empty() ? input : downsample_->forward(input);
  return x.relu_();
}

ResNet18Impl::ResNet18Impl(ResNet18Options options) : options_(options) {
  check_size("ResNet18", "in_channels", options_.in_channels);
  check_size("ResNet18", "classes", options_.classes);
  reset();
}

void ResNet18Impl::reset() {
  conv1_ = register_module("conv1", convolution(options_.in_channels, 64, 7, 2, 3));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(64));
  layer1_ = register_module("layer1", layer(64, 64, 1));
  layer2_ = register_module("layer2", layer(64, 128, 2));
  layer3_ = register_module("layer3", layer(128, 256, 2));
  layer4_ = register_module("layer4", layer(256, 512, 2));
  fc_ = register_module("fc", torch::nn::Linear(512, options_.classes));
  for (const auto& module : modules(/*include_self=*/false))
    if (const auto* conv = module->as<torch::nn::Conv2d>())
      torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  if (options_.channels_last) make_channels_last(parameters());
}

at::Tensor ResNet18Impl::forward(const at::Tensor& input) {
  at::Tensor x = options_.channels_last ? input.contiguous(at::MemoryFormat::ChannelsLast) : input;
  x = bn1_->forward(conv1_->forward(x)).relu_();
  x = at::max_pool2d(x, {3, 3}, {2, 2}, {1, 1});
  x = block_runner_in_force()
          ? run_blocks(blocks(), x)
          : layer4_->forward(layer3_->forward(layer2_->forward(layer1_->forward(x))));
  return fc_->forward(at::flatten(at::adaptive_avg_pool2d(x, {1, 1}), 1));
}

std::vector<Block> ResNet18Impl::blocks() {
  std::vector<Block> out;
  for (const torch::nn::Sequential& layer : {layer1_, layer2_, layer3_, layer4_})
    for (Block& block : sequential_blocks(layer)) out.push_back(std::move(block));
  return out;
}

Model resnet18_from_options(Options& options) {
  const ResNet18Options defaults;
  ResNet18Options wanted;
  wanted.in_channels = size_option(options, "in_channels", defaults.in_channels);
  wanted.classes = size_option(options, "classes", defaults.classes);
  wanted.channels_last = options.get("channels_last", defaults.channels_last);
  return from_module(ResNet18(wanted));
}

}  // namespace bellows::nn
