#include "bellows/nn/lstm.h"

#include "bellows/nn/builtin.h"
#include "bellows/nn/from_module.h"
#include "bellows/nn/sequences.h"
#include "bellows/nn/sizes.h"

namespace bellows::nn {

LstmClassifierImpl::LstmClassifierImpl(LstmClassifierOptions options) : options_(options) {
  check_size("LstmClassifier", "in_features", options_.in_features);
  check_size("LstmClassifier", "hidden", options_.hidden);
  check_size("LstmClassifier", "layers", options_.layers);
  check_dropout("LstmClassifier", options_.dropout);
  check_size("LstmClassifier", "classes", options_.classes);
  reset();
}

void LstmClassifierImpl::reset() {
  lstm_ = register_module(
      "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(options_.in_features, options_.hidden)
                                  .num_layers(options_.layers)
                                  .batch_first(true)
                                  .dropout(options_.dropout)
                                  .bidirectional(options_.bidirectional)));
  const int64_t width = options_.bidirectional ? 2 * options_.hidden : options_.hidden;
  classifier_ = register_module("classifier", torch::nn::Linear(width, options_.classes));
}

at::Tensor LstmClassifierImpl::forward(const at::Tensor& input) {
  const at::Tensor x = as_sequences("LstmClassifier", input, options_.in_features);
  const at::Tensor outputs = std::get<0>(lstm_->forward(x));
  return classifier_->forward(outputs.select(1, -1));
}

Model lstm_from_options(Options& options) {
  const LstmClassifierOptions defaults;
  LstmClassifierOptions wanted;
  wanted.in_features = size_option(options, "in_features", defaults.in_features);
  wanted.hidden = size_option(options, "hidden", defaults.hidden);
  wanted.layers = size_option(options, "layers", defaults.layers);
  wanted.dropout = dropout_option(options, defaults.dropout);
  wanted.bidirectional = options.get("bidirectional", defaults.bidirectional);
  wanted.classes = size_option(options, "classes", defaults.classes);
  return from_module(LstmClassifier(wanted));
}

}  // namespace bellows::nn
