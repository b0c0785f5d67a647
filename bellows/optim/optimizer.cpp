#include "bellows/optim/optimizer.h"

#include <ATen/ops/_foreach_zero.h>
#include <c10/core/GradMode.h>

namespace bellows::optim {

void Optimizer::zero_grad(bool set_to_none) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> to_zero;
  for (size_t group = 0; group < group_count(); ++group) {
    for (const auto& [name, parameter] : parameters(group)) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (gradient.is_view()) {
        to_zero.push_back(gradient);
      } else if (set_to_none) {
        gradient.reset();
      } else {
        if (gradient.grad_fn() != nullptr) gradient.detach_();
        to_zero.push_back(gradient);
      }
    }
  }
  if (!to_zero.empty()) at::_foreach_zero_(to_zero);
}

}  // namespace bellows::optim
