#include "bellows/train/step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/mean.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::train {

StepFunction classification() {
  return [](const nn::Model& model, const Tree& batch) {
    const at::Tensor& target = batch[1].tensor();
    const Tree result = model.forward(batch[0]);
    const at::Tensor& logits = result.tensor();
    if (logits.dim() != 2 || target.dim() != 1 || logits.size(0) != target.size(0)) {
      throw ValueError(
          concat("classification: expected logits [N, classes] and targets [N], got logits ",
                 logits.sizes(), " and targets ", target.sizes()));
    }
    StepOutput output{at::cross_entropy_loss(logits, target), {}};
    if (!model.is_training()) {
      at::NoGradGuard no_grad;
      output.metrics["accuracy"] = logits.argmax(1).eq(target).mean(at::kFloat);
    }
    return output;
  };
}

}  // namespace bellows::train
