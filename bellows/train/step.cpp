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
    const bool fits = target.is_floating_point()
                          ? target.sizes() == logits.sizes()
                          : target.dim() == 1 && logits.size(0) == target.size(0);
    if (logits.dim() != 2 || !fits) {
      throw ValueError(concat(
          "classification: expected logits [N, classes] and targets [N], or [N, classes] where "
          "they are probabilities; got logits ",
          logits.sizes(), " and targets ", target.scalar_type(), " ", target.sizes()));
    }
    StepOutput output{at::cross_entropy_loss(logits, target), {}};
    if (!model.is_training()) {
      at::NoGradGuard no_grad;
      output.metrics["accuracy"] =
          logits.argmax(1).eq(target.dim() == 2 ? target.argmax(1) : target).mean(at::kFloat);
    }
    return output;
  };
}

}  // namespace bellows::train
