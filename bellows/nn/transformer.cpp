#include "bellows/nn/transformer.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/nn/blocks.h"
#include "bellows/nn/builtin.h"
#include "bellows/nn/from_module.h"
#include "bellows/nn/sequences.h"
#include "bellows/nn/sizes.h"

namespace bellows::nn {
namespace {

void check(const std::string& model, const TransformerEncoderLayerOptions& options) {
  check_size(model, "width", options.width);
  check_size(model, "heads", options.heads);
  check_size(model, "feedforward", options.feedforward);
  check_dropout(model, options.dropout);
  if (options.width % options.heads != 0)
    throw ValueError(concat(model, ": heads: got ", options.heads, ", expected a divisor of width ",
                            options.width, "."));
}

torch::nn::LayerNorm layer_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

SelfAttentionImpl::SelfAttentionImpl(int64_t width, int64_t heads, double dropout)
    : width_(width), heads_(heads), dropout_(dropout) {
  check("SelfAttention", {.width = width, .heads = heads, .dropout = dropout});
  reset();
}

void SelfAttentionImpl::reset() {
  in_proj_weight_ = register_parameter("in_proj_weight", at::empty({3 * width_, width_}));
  in_proj_bias_ = register_parameter("in_proj_bias", at::zeros({3 * width_}));
  out_proj_ = register_module("out_proj", torch::nn::Linear(width_, width_));  // draws first
  torch::nn::init::xavier_uniform_(in_proj_weight_);
  torch::nn::init::zeros_(out_proj_->bias);
}

at::Tensor SelfAttentionImpl::forward(const at::Tensor& input) {
  const int64_t samples = input.size(0), tokens = input.size(1);
  const at::Tensor projected = at::linear(input, in_proj_weight_, in_proj_bias_)
                                   .view({samples, tokens, 3, heads_, width_ / heads_})
                                   .permute({2, 0, 3, 1, 4});  // 3 of [N, heads, T, size]
  const at::Tensor x = at::scaled_dot_product_attention(projected[0], projected[1], projected[2],
                                                        {}, is_training() ? dropout_ : 0);
  // Tokens first in memory, as in Python: the dropout that follows draws in this order.
  const at::Tensor joined = x.permute({2, 0, 1, 3}).reshape({tokens, samples, width_});
  return out_proj_->forward(joined).transpose(0, 1);
}

TransformerEncoderLayerImpl::TransformerEncoderLayerImpl(TransformerEncoderLayerOptions options)
    : options_(options) {
  check("TransformerEncoderLayer", options_);
  reset();
}

void TransformerEncoderLayerImpl::reset() {
  const int64_t width = options_.width;
  self_attn_ = register_module("self_attn", SelfAttention(width, options_.heads, options_.dropout));
  linear1_ = register_module("linear1", torch::nn::Linear(width, options_.feedforward));
  linear2_ = register_module("linear2", torch::nn::Linear(options_.feedforward, width));
  norm1_ = register_module("norm1", layer_norm(width));
  norm2_ = register_module("norm2", layer_norm(width));
}

at::Tensor TransformerEncoderLayerImpl::forward(const at::Tensor& input) {
  if (options_.norm_first) {
    const at::Tensor x = input + attend(norm1_->forward(input));
    return x + feed_forward(norm2_->forward(x));
  }
  const at::Tensor x = norm1_->forward(input + attend(input));
  return norm2_->forward(x + feed_forward(x));
}

at::Tensor TransformerEncoderLayerImpl::attend(const at::Tensor& x) {
  return at::dropout(self_attn_->forward(x), options_.dropout, is_training());
}

at::Tensor TransformerEncoderLayerImpl::feed_forward(const at::Tensor& x) {
  at::Tensor y = linear1_->forward(x);
  y = options_.activation == Activation::gelu ? at::gelu(y) : at::relu(y);
  y = linear2_->forward(at::dropout(y, options_.dropout, is_training()));
  return at::dropout(y, options_.dropout, is_training());
}

TransformerEncoderImpl::TransformerEncoderImpl(TransformerEncoderLayerOptions layer, int64_t layers)
    : layer_(layer), count_(layers) {
  check("TransformerEncoder", layer_);
  check_size("TransformerEncoder", "layers", count_);
  reset();
}

void TransformerEncoderImpl::reset() {
  layers_ = register_module("layers", torch::nn::ModuleList());
  const TransformerEncoderLayer first(layer_);
  layers_->push_back(first.ptr());
  // A copy draws weights before it gets those of the first: undo that.
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = state_of(generator);
  for (int64_t i = 1; i < count_; ++i) layers_->push_back(first->clone());
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

at::Tensor TransformerEncoderImpl::forward(const at::Tensor& input) {
  if (block_runner_in_force()) {
    std::vector<Block> blocks;
    for (const auto& layer : *layers_)
      blocks.push_back({[layer](const at::Tensor& x) {
        return layer->as<TransformerEncoderLayer>()->forward(x);
      }});
    return run_blocks(blocks, input);
  }
  at::Tensor x = input;
  for (int64_t i = 0; i < count_; ++i) x = layers_->at<TransformerEncoderLayerImpl>(i).forward(x);
  return x;
}

TransformerClassifierImpl::TransformerClassifierImpl(TransformerClassifierOptions options)
    : options_(options) {
  check_size("TransformerClassifier", "in_features", options_.in_features);
  check("TransformerClassifier", options_.layer);
  check_size("TransformerClassifier", "layers", options_.layers);
  check_size("TransformerClassifier", "max_tokens", options_.max_tokens);
  check_size("TransformerClassifier", "classes", options_.classes);
  reset();
}

void TransformerClassifierImpl::reset() {
  const int64_t width = options_.layer.width;
  embed_ = register_module("embed", torch::nn::Linear(options_.in_features, width));
  position_ = register_parameter("position", at::empty({1, options_.max_tokens, width}));
  torch::nn::init::normal_(position_, 0, 0.02);
  encoder_ = register_module("encoder", TransformerEncoder(options_.layer, options_.layers));
  classifier_ = register_module("classifier", torch::nn::Linear(width, options_.classes));
}

at::Tensor TransformerClassifierImpl::forward(const at::Tensor& input) {
  const at::Tensor x = as_sequences("TransformerClassifier", input, options_.in_features);
  const int64_t tokens = x.size(1);
  if (tokens > options_.max_tokens)
    throw ValueError(concat("TransformerClassifier: input of shape ", input.sizes(),
                            ": max_tokens: got ", tokens, " tokens, expected at most ",
                            options_.max_tokens, "."));
  const at::Tensor placed = embed_->forward(x) + position_.narrow(1, 0, tokens);
  return classifier_->forward(encoder_->forward(placed).mean(1));
}

namespace {

TransformerEncoderLayerOptions layer_from_options(Options& options) {
  const TransformerEncoderLayerOptions defaults;
  TransformerEncoderLayerOptions wanted;
  wanted.width = size_option(options, "width", defaults.width);
  wanted.heads = size_option(options, "heads", defaults.heads);
  if (wanted.width % wanted.heads != 0)
    options.fail(options.has("heads") ? "heads" : "width",
                 concat("got ", wanted.heads, " heads and width ", wanted.width,
                        ", expected a width that heads divides"));
  wanted.feedforward = size_option(options, "feedforward", defaults.feedforward);
  wanted.dropout = dropout_option(options, defaults.dropout);
  wanted.norm_first = options.get("norm_first", defaults.norm_first);
  if (options.get_one_of("activation", "relu", {"relu", "gelu"}) == "gelu")
    wanted.activation = Activation::gelu;
  return wanted;
}

}  // namespace

Model transformer_from_options(Options& options) {
  const TransformerClassifierOptions defaults;
  TransformerClassifierOptions wanted;
  wanted.in_features = size_option(options, "in_features", defaults.in_features);
  wanted.layer = layer_from_options(options);
  wanted.layers = size_option(options, "layers", defaults.layers);
  wanted.max_tokens = size_option(options, "max_tokens", defaults.max_tokens);
  wanted.classes = size_option(options, "classes", defaults.classes);
  return from_module(TransformerClassifier(wanted));
}

}  // namespace bellows::nn
