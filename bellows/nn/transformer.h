// A transformer's encoder, and a classifier of sequences and images on it. Source: "Attention Is
// All You Need" (Vaswani et al. 2017), in the form of torch/nn/modules/transformer.py with
// batch_first, whose names, initial weights, results and, on CPUs, draws of dropout it has.
// LibTorch's own TransformerEncoderLayer has neither batch_first nor norm_first nor fused
// attention.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

namespace bellows::nn {

enum class Activation { relu, gelu };

struct TransformerEncoderLayerOptions {
  int64_t width = 64;  // d_model
  int64_t heads = 4;   // a divisor of width
  int64_t feedforward = 128;
  double dropout = 0.1;     // of attention weights, of both blocks' results, between both linears
  bool norm_first = false;  // layer norm before a block, inside of the way around it; else after
  Activation activation = Activation::relu;
};

/// nn.MultiheadAttention of a sequence with itself: [N, T, width] -> the same shape. Uses
/// at::scaled_dot_product_attention, so that weights [N, heads, T, T] exist in memory only where
/// LibTorch has no fused kernel (on CPUs: with dropout, in training). Throws ValueError for a size
/// below 1, a width that heads does not divide, and a dropout outside of [0, 1).
class SelfAttentionImpl : public torch::nn::Cloneable<SelfAttentionImpl> {
 public:
  SelfAttentionImpl(int64_t width, int64_t heads, double dropout);
  void reset() override;
  at::Tensor forward(const at::Tensor& input);

 private:
  int64_t width_, heads_;
  double dropout_;
  at::Tensor in_proj_weight_, in_proj_bias_;
  torch::nn::Linear out_proj_ = nullptr;
};
TORCH_MODULE(SelfAttention);

/// Self-attention, then two linear layers, each with a way around: [N, T, width] -> the same shape.
/// Throws ValueError as SelfAttention.
class TransformerEncoderLayerImpl : public torch::nn::Cloneable<TransformerEncoderLayerImpl> {
 public:
  explicit TransformerEncoderLayerImpl(TransformerEncoderLayerOptions options = {});
  void reset() override;
  at::Tensor forward(const at::Tensor& input);

 private:
  at::Tensor attend(const at::Tensor& x);
  at::Tensor feed_forward(const at::Tensor& x);

  TransformerEncoderLayerOptions options_;
  SelfAttention self_attn_ = nullptr;
  torch::nn::Linear linear1_ = nullptr, linear2_ = nullptr;
  torch::nn::LayerNorm norm1_ = nullptr, norm2_ = nullptr;
};
TORCH_MODULE(TransformerEncoderLayer);

/// A stack `layers` of encoder layers, without a norm at its end. As in Python, all start with the
/// weights of the first, and only these are drawn. Throws as the layer, and for no layers.
class TransformerEncoderImpl : public torch::nn::Cloneable<TransformerEncoderImpl> {
 public:
  TransformerEncoderImpl(TransformerEncoderLayerOptions layer, int64_t layers);
  void reset() override;
  at::Tensor forward(const at::Tensor& input);

 private:
  TransformerEncoderLayerOptions layer_;
  int64_t count_;
  torch::nn::ModuleList layers_ = nullptr;
};
TORCH_MODULE(TransformerEncoder);

struct TransformerClassifierOptions {
  int64_t in_features = 28;
  TransformerEncoderLayerOptions layer = {};
  int64_t layers = 2;
  int64_t max_tokens = 64;  // the longest sequence there is a position for
  int64_t classes = 10;
};

/// [N, T, in_features], or images [N, C, H, W] with T = H and in_features = C * W -> [N, classes]:
/// a Linear layer `embed`, plus the first T of `position` [1, max_tokens, width] (learned; drawn
/// with standard deviation 0.02), `encoder`, the mean over tokens, a Linear layer `classifier`.
/// Throws ValueError as the encoder, and for an input of another shape or with more than max_tokens
/// tokens.
class TransformerClassifierImpl : public torch::nn::Cloneable<TransformerClassifierImpl> {
 public:
  explicit TransformerClassifierImpl(TransformerClassifierOptions options = {});
  void reset() override;
  at::Tensor forward(const at::Tensor& input);

 private:
  TransformerClassifierOptions options_;
  at::Tensor position_;
  torch::nn::Linear embed_ = nullptr;
  TransformerEncoder encoder_ = nullptr;
  torch::nn::Linear classifier_ = nullptr;
};
TORCH_MODULE(TransformerClassifier);

}  // namespace bellows::nn
