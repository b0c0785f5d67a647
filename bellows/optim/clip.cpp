#include <algorithm>

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/optim/optimizer.h"

namespace bellows::optim {
namespace {

// The kernels over lists want one device and type each. In order of first appearance.
std::vector<std::vector<at::Tensor>> gradients_by_kind(const NamedTensors& parameters) {
  std::vector<std::vector<at::Tensor>> kinds;
  for (const auto& [name, parameter] : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    auto kind = std::ranges::find_if(kinds, [&](const std::vector<at::Tensor>& other) {
      return other[0].device() == gradient.device() && other[0].dtype() == gradient.dtype();
    });
    if (kind == kinds.end()) {
      kind = kinds.emplace(kind);
      kind->reserve(parameters.size());
    }
    kind->push_back(gradient);
  }
  return kinds;
}

at::Tensor joint_norm(const std::vector<std::vector<at::Tensor>>& kinds) {
  const c10::Device device = kinds[0][0].device();
  std::vector<at::Tensor> norms;
  for (const std::vector<at::Tensor>& gradients : kinds) {
    for (at::Tensor& norm : at::_foreach_norm(gradients)) {
      norms.push_back(norm.device() == device ? std::move(norm) : norm.to(device));
    }
  }
  return at::linalg_vector_norm(at::stack(norms));
}

}  // namespace

at::Tensor clip_grad_norm_(const NamedTensors& parameters, double max_norm) {
  if (!(max_norm >= 0)) {
    throw ValueError(concat("clip_grad_norm_: got max_norm ", max_norm, ", expected at least 0"));
  }
  const c10::NoGradGuard no_grad;
  const std::vector<std::vector<at::Tensor>> kinds = gradients_by_kind(parameters);
  if (kinds.empty()) return at::zeros({});
  const at::Tensor norm = joint_norm(kinds);
  // A number over a tensor is reciprocal times number in Python, and so rounded twice.
  const at::Tensor coefficient = norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
  // On the CPU the value is at hand: a factor of 1 would change nothing.
  if (coefficient.is_cpu() && coefficient.item<double>() == 1.0) return norm;
  for (const std::vector<at::Tensor>& gradients : kinds) {
    at::_foreach_mul_(gradients, coefficient.to(gradients[0].device()));
  }
  return norm;
}

}  // namespace bellows::optim
