// A classifier of sequences, and of images read row by row, with an LSTM.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>

namespace bellows::nn {

struct LstmClassifierOptions {
  int64_t in_features = 28;
  int64_t hidden = 128;
  int64_t layers = 1;
  double dropout = 0;          // between layers; without effect on one layer
  bool bidirectional = false;  // then the classifier sees both directions, side by side
  int64_t classes = 10;
};

/// [N, T, in_features], or images [N, C, H, W] with T = H and in_features = C * W -> [N, classes].
/// `lstm` is nn.LSTM with batch_first, `classifier` a Linear layer on its output at the last step
/// (where the backward direction has read that step alone). Names, initial weights and, on CPUs,
/// draws of dropout are those of the same nn.LSTM and nn.Linear in Python under the same seed.
/// Throws ValueError for a size below 1, a dropout outside of [0, 1) and an input of another shape.
class LstmClassifierImpl : public torch::nn::Cloneable<LstmClassifierImpl> {
 public:
  explicit LstmClassifierImpl(LstmClassifierOptions options = {});
  void reset() override;
  at::Tensor forward(const at::Tensor& input);

 private:
  LstmClassifierOptions options_;
  torch::nn::LSTM lstm_ = nullptr;
  torch::nn::Linear classifier_ = nullptr;
};
TORCH_MODULE(LstmClassifier);

}  // namespace bellows::nn
