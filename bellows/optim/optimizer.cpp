#include "bellows/optim/optimizer.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <c10/core/GradMode.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

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

at::Tensor Optimizer::step(const LossClosure& closure) {
  at::Tensor loss;
  {
    const at::AutoGradMode gradients(true);
    loss = closure();
  }
  step();
  return loss;
}

std::optional<double> Optimizer::initial_lr(size_t group) const {
  return group < initial_lr_.size() ? initial_lr_[group] : std::nullopt;
}

void Optimizer::set_initial_lr(size_t group, double lr) {
  static_cast<void>(parameters(group));  // throws where there is no such group
  initial_lr_.resize(std::max(initial_lr_.size(), group + 1));
  initial_lr_[group] = lr;
}

void Optimizer::write_initial_lr(size_t group, Tree::Dict& saved) const {
  if (const auto initial = initial_lr(group)) saved["initial_lr"] = *initial;
}

void Optimizer::read_initial_lr(size_t group, const Tree& saved) {
  if (saved.contains("initial_lr")) set_initial_lr(group, saved.at("initial_lr").number());
}

std::optional<double> Optimizer::momentum(size_t /*group*/) const {
  return std::nullopt;
}

void Optimizer::set_momentum(size_t /*group*/, double /*momentum*/) {
  throw ValueError(concat(name(), ": it has neither momentum nor betas"));
}

}  // namespace bellows::optim
