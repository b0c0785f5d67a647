#include "bellows/nn/convnet.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/flatten.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/pooling.h>

#include "bellows/core/error.h"
#include "bellows/nn/builtin.h"
#include "bellows/nn/from_module.h"
#include "bellows/nn/memory_format.h"
#include "bellows/nn/module_blocks.h"
#include "bellows/nn/sizes.h"

namespace bellows::nn {
namespace {

constexpr size_t kModulesOfABlock = 4;
constexpr int64_t kGrid = 3;  // the classifier sees this many cells a side

}  // namespace

ConvNetImpl::ConvNetImpl(ConvNetOptions options) : options_(std::move(options)) {
  check_size("ConvNet", "in_channels", options_.in_channels);
  for (int64_t width : options_.channels) check_size("ConvNet", "channels", width);
  check_size("ConvNet", "classes", options_.classes);
  if (options_.channels.empty())
    throw ValueError("ConvNet: channels: got an empty list, expected one entry for each block.");
  reset();
}

void ConvNetImpl::reset() {
  features_ = register_module("features", torch::nn::Sequential());
  int64_t width = options_.in_channels;
  for (int64_t next : options_.channels) {
    features_->push_back(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(width, next, 3).padding(1).bias(false)));
    features_->push_back(torch::nn::MaxPool2d(2));
    features_->push_back(torch::nn::BatchNorm2d(next));
    features_->push_back(torch::nn::ReLU());
    width = next;
  }
  classifier_ =
      register_module("classifier", torch::nn::Linear(width * kGrid * kGrid, options_.classes));
  if (options_.channels_last) make_channels_last(parameters());
}

at::Tensor ConvNetImpl::forward(const at::Tensor& input) {
  at::Tensor x = options_.channels_last ? input.contiguous(at::MemoryFormat::ChannelsLast) : input;
  x = block_runner_in_force() ? run_blocks(sequential_blocks(features_, kModulesOfABlock), x)
                              : features_->forward(x);
  if (x.size(-2) != kGrid || x.size(-1) != kGrid) x = at::adaptive_avg_pool2d(x, {kGrid, kGrid});
  return classifier_->forward(at::flatten(x, 1));
}

Model convnet_from_options(Options& options) {
  const ConvNetOptions defaults;
  ConvNetOptions wanted;
  wanted.in_channels = size_option(options, "in_channels", defaults.in_channels);
  wanted.channels = size_list_option(options, "channels", defaults.channels, 1);
  wanted.classes = size_option(options, "classes", defaults.classes);
  wanted.channels_last = options.get("channels_last", defaults.channels_last);
  return from_module(ConvNet(wanted));
}

}  // namespace bellows::nn
