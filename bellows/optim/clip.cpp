#include "bellows/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
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

std::vector<at::Tensor> norms_of(const Gradients& gradients, double order, ThreadPool* helpers) {
  if (helpers == nullptr) return at::_foreach_norm(gradients, order);
  std::vector<at::Tensor> norms(gradients.size());
  for_each(*helpers, gradients.size(),
           [&](size_t i) { norms[i] = at::linalg_vector_norm(gradients[i], order); });
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

// Gradients of one kind, and who helps with them.
struct Share {
  Gradients gradients;
  std::unique_ptr<ThreadPool> helpers;
};

std::vector<Share> shares_of(const NamedTensors& parameters) {
  std::vector<Share> shares;
  for (Gradients& gradients : gradients_by_kind(parameters)) {
    auto helpers = helpers_for(gradients);
    shares.push_back({std::move(gradients), std::move(helpers)});
  }
  return shares;
}

at::Tensor total_norm_of(const std::vector<Share>& shares, double order, bool error_if_nonfinite) {
  if (!(order > 0)) {
    throw ValueError(concat("norm_type: got ", order, ", expected a number above 0, or infinity"));
  }
  if (shares.empty()) return at::zeros({});
  const c10::Device device = shares[0].gradients[0].device();
  std::vector<at::Tensor> norms;
  for (const auto& [gradients, helpers] : shares) {
    for (const at::Tensor& norm : norms_of(gradients, order, helpers.get())) {
      norms.push_back(norm.to(device));
    }
  }
  at::Tensor norm = at::linalg_vector_norm(at::stack(norms), order);
  if (error_if_nonfinite && !std::isfinite(norm.item<double>())) {
    throw NonFiniteError(concat("the norm of order ", order, " of the gradients is ",
                                norm.item<double>(),
                                "; without error_if_nonfinite they are scaled by it all the same"));
  }
  return norm;
}

void check_limit(const char* function, const char* what, double limit) {
  if (limit >= 0) return;
  throw ValueError(concat(function, ": got ", what, " ", limit, ", expected at least 0"));
}

void scale(const std::vector<Share>& shares, double max_norm, const at::Tensor& norm) {
  // A number over a tensor is reciprocal times number in Python, and so rounded twice.
  const at::Tensor coefficient = norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
  // On the CPU the value is at hand: a factor of 1 would change nothing.
  if (coefficient.is_cpu() && coefficient.item<double>() == 1.0) return;
  for (const auto& [gradients, helpers] : shares) {
    multiply(gradients, coefficient.to(gradients[0].device()), helpers.get());
  }
}

}  // namespace

at::Tensor get_total_norm(const NamedTensors& parameters, double norm_type,
                          bool error_if_nonfinite) {
  const c10::NoGradGuard no_grad;
  return total_norm_of(shares_of(parameters), norm_type, error_if_nonfinite);
}

at::Tensor clip_grad_norm_(const NamedTensors& parameters, double max_norm, double norm_type,
                           bool error_if_nonfinite) {
  check_limit("clip_grad_norm_", "max_norm", max_norm);
  const c10::NoGradGuard no_grad;
  const std::vector<Share> shares = shares_of(parameters);
  at::Tensor norm = total_norm_of(shares, norm_type, error_if_nonfinite);
  if (!shares.empty()) scale(shares, max_norm, norm);
  return norm;
}

void clip_grads_with_norm_(const NamedTensors& parameters, double max_norm,
                           const at::Tensor& total_norm) {
  check_limit("clip_grads_with_norm_", "max_norm", max_norm);
  const c10::NoGradGuard no_grad;
  scale(shares_of(parameters), max_norm, total_norm);
}

void clip_grad_value_(const NamedTensors& parameters, double clip_value) {
  check_limit("clip_grad_value_", "clip_value", clip_value);
  const c10::NoGradGuard no_grad;
  for (const Gradients& gradients : gradients_by_kind(parameters)) {
    at::_foreach_clamp_min_(gradients, -clip_value);
    at::_foreach_clamp_max_(gradients, clip_value);
  }
}

}  // namespace bellows::optim
