#include "bellows/nn/mlp.h"

#include <ATen/ops/flatten.h>
#include <ATen/ops/relu.h>

#include "bellows/nn/blocks.h"
#include "bellows/nn/builtin.h"
#include "bellows/nn/from_module.h"
#include "bellows/nn/sizes.h"

namespace bellows::nn {

MlpImpl::MlpImpl(MlpOptions options) : options_(std::move(options)) {
  check_size("Mlp", "in_features", options_.in_features);
  for (int64_t width : options_.hidden) check_size("Mlp", "hidden", width);
  check_size("Mlp", "classes", options_.classes);
  reset();
}

void MlpImpl::reset() {
  layers_ = register_module("layers", torch::nn::ModuleList());
  int64_t width = options_.in_features;
  for (int64_t next : options_.hidden) {
    layers_->push_back(torch::nn::Linear(width, next));
    width = next;
  }
  layers_->push_back(torch::nn::Linear(width, options_.classes));
}

at::Tensor MlpImpl::forward(const at::Tensor& input) {
  at::Tensor x = at::flatten(input, 1);
  if (block_runner_in_force()) return run_blocks(blocks(), x);
  for (size_t i = 0; i < layers_->size(); ++i) x = layer(i, x);
  return x;
}

// With the activation before it.
at::Tensor MlpImpl::layer(size_t index, const at::Tensor& x) {
  return layers_->at<torch::nn::LinearImpl>(index).forward(index > 0 ? at::relu(x) : x);
}

std::vector<Block> MlpImpl::blocks() {
  std::vector<Block> out;
  for (size_t i = 0; i < layers_->size(); ++i)
    out.push_back({[this, i](const at::Tensor& x) { return layer(i, x); }});
  return out;
}

Model mlp_from_options(Options& options) {
  const MlpOptions defaults;
  MlpOptions wanted;
  wanted.in_features = size_option(options, "in_features", defaults.in_features);
  wanted.hidden = size_list_option(options, "hidden", defaults.hidden);
  wanted.classes = size_option(options, "classes", defaults.classes);
  return from_module(Mlp(wanted));
}

}  // namespace bellows::nn
