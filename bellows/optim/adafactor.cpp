#include "bellows/optim/adafactor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_rsqrt.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/stack.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {
namespace {

// The root of the mean square of each; waits for the device once.
std::vector<double> root_mean_squares(const TensorVector& tensors) {
  TensorVector norms;
  for (const at::Tensor& tensor : tensors) norms.push_back(at::linalg_vector_norm(tensor, 2));
  const at::Tensor all = at::stack(norms).to(at::kCPU, at::kDouble);
  std::vector<double> values;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto count = static_cast<double>(tensors[i].numel());
    values.push_back(all.const_data_ptr<double>()[i] / std::pow(count, 0.5));
  }
  return values;
}

// Mean squares along a dimension, kept as 1.
TensorVector mean_squares(const TensorVector& tensors, int64_t dim) {
  TensorVector means;
  std::vector<c10::Scalar> sizes;
  for (const at::Tensor& tensor : tensors) {
    means.push_back(at::linalg_vector_norm(tensor, 2, at::IntArrayRef(dim), /*keepdim=*/true));
    sizes.emplace_back(tensor.size(dim));
  }
  at::_foreach_mul_(means, means);
  at::_foreach_div_(means, sizes);
  return means;
}

double smallest(c10::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kHalf:
      return std::ldexp(1.0, -10);
    case at::kBFloat16:
      return std::ldexp(1.0, -7);
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

// The estimates of the variance in work list 0, from state that has been brought up to date.
TensorVector& variances(Batch& batch, const TensorVector& gradients,
                        const std::vector<c10::Scalar>& weights, double eps) {
  TensorVector& rows = batch.state[1];
  TensorVector& columns = batch.state[2];
  TensorVector& vectors = batch.state[3];
  if (rows.empty()) {
    at::_foreach_mul_(copied(batch, gradients, 0), gradients);
    at::_foreach_lerp_(vectors, batch.work[0], weights);
    return copied(batch, vectors, 0);
  }
  at::_foreach_lerp_(rows, mean_squares(gradients, -1), weights);
  at::_foreach_lerp_(columns, mean_squares(gradients, -2), weights);
  TensorVector means;
  for (size_t i = 0; i < rows.size(); ++i) {
    at::matmul_out(batch.work[0][i], rows[i], columns[i]);
    means.push_back(rows[i].mean(at::IntArrayRef(-2), /*keepdim=*/true));
  }
  at::_foreach_clamp_min_(means, eps);
  at::_foreach_div_(batch.work[0], means);
  return batch.work[0];
}

}  // namespace

void Adafactor::update(size_t group, Batch& batch) {
  const AdafactorOptions& own = options(group);
  const double eps = own.eps.first.value_or(smallest(batch.parameters[0].scalar_type()));
  TensorVector& steps = batch.state[0];
  const TensorVector& gradients = with_decay(batch, own.maximize, 0, 1);
  advance(steps);
  const std::vector<double> sizes = root_mean_squares(batch.parameters);
  if (own.weight_decay != 0) at::_foreach_mul_(batch.parameters, 1 - own.lr * own.weight_decay);

  TensorVector& updates =
      variances(batch, gradients,
                by_step(steps, [&](double step) { return std::pow(step, own.beta2_decay); }), eps);
  at::_foreach_clamp_min_(updates, eps * eps);
  at::_foreach_rsqrt_(updates);
  at::_foreach_mul_(updates, gradients);

  const std::vector<double> lengths = root_mean_squares(updates);
  std::vector<c10::Scalar> rates;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double rho = std::min(own.lr, 1 / std::pow(value_of(steps[i]), 0.5));
    const double alpha = std::max(own.eps.second, sizes[i]) * rho;
    rates.emplace_back(-alpha / std::max(1.0, lengths[i] / own.d));
  }
  at::_foreach_mul_(updates, rates);
  at::_foreach_add_(batch.parameters, updates);
}

void visit_options(OptionVisitor& visitor, AdafactorOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.number("beta2_decay", options.beta2_decay, {.high = 0});
  visitor.half_optional("eps", options.eps.first, options.eps.second, kNotNegative);
  visitor.number("d", options.d, {.low = 1});
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kForeachOrSingle);
}

const StateLayout& state_layout(const AdafactorOptions& /*options*/) {
  static const StateLayout layout{"Adafactor",
                                  {{"step", Extent::count},
                                   {"row_var", Extent::rows},
                                   {"col_var", Extent::columns},
                                   {"variance", Extent::vector}}};
  return layout;
}

StateNeeds state_needs(const AdafactorOptions& options) {
  return {.fields = {{{true}, {true}, {true}, {true}}},
          .work = 1 + lists_for_decay(options.maximize, 0),
          .one_by_one = options.implementation != Implementation::foreach};
}

}  // namespace bellows::optim
