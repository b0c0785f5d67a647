// What training and evaluation compute on a batch: any function of model and batch.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "bellows/nn/model.h"

namespace bellows::train {

/// `loss`: 0-dim, the mean over the batch's samples; with a graph while training. `metrics`:
/// further 0-dim means over the batch, without a graph.
struct StepOutput {
  at::Tensor loss;
  std::map<std::string, at::Tensor> metrics;
  /// What `loss` is a mean over, where that is not the batch's samples: the number of tokens, say.
  /// A step that is made of several batches, or of several ranks' ones, then has the gradients of
  /// the mean over all of them. Either all batches of a step have it or none.
  std::optional<double> weight = {};
};

using StepFunction = std::function<StepOutput(const nn::Model& model, const Tree& batch)>;

/// For batches {input, class index (int64, [N]) or probabilities [N, classes]} and models that give
/// logits [N, classes]: cross-entropy, and "accuracy" (0 to 1) in evaluation mode.
StepFunction classification();

}  // namespace bellows::train
