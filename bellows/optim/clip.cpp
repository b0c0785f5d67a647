#include <algorithm>
#include <memory>

#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/core/thread_pool.h"
#include "bellows/optim/optimizer.h"

namespace bellows::optim {
namespace {

using Gradients = std::vector<at::Tensor>;

// Products of fewer values LibTorch leaves to one thread (its GRAIN_SIZE).
constexpr int64_t kSerialProduct = 32768;

// The kernels over lists want one device and type each. In order of first appearance.
std::vector<Gradients> gradients_by_kind(const NamedTensors& parameters) {
  std::vector<Gradients> kinds;
  for (const auto& [name, parameter] : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    auto kind = std::ranges::find_if(kinds, [&](const Gradients& other) {
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

// LibTorch takes one thread for the norm of a dense tensor of these types, however large, and for
// products of small ones. Then several tensors at a time change no bit and are faster. Starting
// threads costs some 50 µs, and pays from about a million values on.
std::unique_ptr<ThreadPool> helpers_for(const Gradients& gradients) {
  constexpr int64_t kWorthwhile = int64_t{1} << 20;
  const at::Tensor& first = gradients[0];
  const bool serial =
      first.is_cpu() && (first.scalar_type() == at::kFloat || first.scalar_type() == at::kDouble ||
                         first.scalar_type() == at::kBFloat16);
  if (!serial) return nullptr;
  int64_t values = 0;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.layout() != at::kStrided || !gradient.is_non_overlapping_and_dense()) {
      return nullptr;
    }
    values += gradient.numel();
  }
  const int threads = std::min<int>(at::get_num_threads(), static_cast<int>(gradients.size()));
  if (values < kWorthwhile || threads < 2) return nullptr;
  return std::make_unique<ThreadPool>(threads - 1);
}

template <class Body>
void for_each(ThreadPool& helpers, size_t count, Body body) {
  helpers.parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
    const c10::NoGradGuard no_grad;
    for (int64_t i = begin; i < end; ++i) body(static_cast<size_t>(i));
  });
}

std::vector<at::Tensor> norms_of(const Gradients& gradients, ThreadPool* helpers) {
  if (helpers == nullptr) return at::_foreach_norm(gradients);
  std::vector<at::Tensor> norms(gradients.size());
  for_each(*helpers, gradients.size(),
           [&](size_t i) { norms[i] = at::linalg_vector_norm(gradients[i], 2); });
  return norms;
}

void multiply(const Gradients& gradients, const at::Tensor& factor, ThreadPool* helpers) {
  if (helpers == nullptr) return at::_foreach_mul_(gradients, factor);
  Gradients small, large;
  for (const at::Tensor& gradient : gradients) {
    (gradient.numel() < kSerialProduct ? small : large).push_back(gradient);
  }
  for_each(*helpers, small.size(), [&](size_t i) { small[i].mul_(factor); });
  if (!large.empty()) at::_foreach_mul_(large, factor);
}

}  // namespace

at::Tensor clip_grad_norm_(const NamedTensors& parameters, double max_norm) {
  if (!(max_norm >= 0)) {
    throw ValueError(concat("clip_grad_norm_: got max_norm ", max_norm, ", expected at least 0"));
  }
  const c10::NoGradGuard no_grad;
  const std::vector<Gradients> kinds = gradients_by_kind(parameters);
  if (kinds.empty()) return at::zeros({});
  const c10::Device device = kinds[0][0].device();
  std::vector<std::unique_ptr<ThreadPool>> helpers;
  std::vector<at::Tensor> norms;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    helpers.push_back(helpers_for(kinds[kind]));
    for (const at::Tensor& norm : norms_of(kinds[kind], helpers[kind].get())) {
      norms.push_back(norm.to(device));
    }
  }
  const at::Tensor norm = at::linalg_vector_norm(at::stack(norms));
  // A number over a tensor is reciprocal times number in Python, and so rounded twice.
  const at::Tensor coefficient = norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
  // On the CPU the value is at hand: a factor of 1 would change nothing.
  if (coefficient.is_cpu() && coefficient.item<double>() == 1.0) return norm;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    multiply(kinds[kind], coefficient.to(kinds[kind][0].device()), helpers[kind].get());
  }
  return norm;
}

}  // namespace bellows::optim
