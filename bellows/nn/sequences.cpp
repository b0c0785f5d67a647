#include "bellows/nn/sequences.h"

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::nn {

at::Tensor as_sequences(const std::string& model, const at::Tensor& input, int64_t in_features) {
  const auto refuse = [&](const std::string& what) {
    throw ValueError(concat(model, ": input of shape ", input.sizes(), ": ", what));
  };
  if (input.dim() != 3 && input.dim() != 4)
    refuse(concat("got ", input.dim(),
                  " dimensions, expected sequences [N, T, in_features] or images [N, C, H, W]."));
  const bool image = input.dim() == 4;
  const int64_t steps = input.size(image ? 2 : 1);
  const int64_t features = image ? input.size(1) * input.size(3) : input.size(2);
  if (steps == 0) refuse("got no steps, expected at least 1.");
  if (features != in_features)
    refuse(concat("in_features: got ", features, image ? " (channels * width)" : "",
                  " in a step, expected ", in_features, "."));
  if (!image) return input;
  return input.transpose(1, 2).reshape({input.size(0), steps, features});
}

}  // namespace bellows::nn
