#include "bellows/optim/muon.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/optim/foreach.h"

namespace bellows::optim {
namespace {

// A nearly orthogonal matrix by Newton-Schulz iterations, in bfloat16.
at::Tensor orthogonal(const at::Tensor& matrix, const MuonOptions& own) {
  const auto [a, b, c] = own.ns_coefficients;
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor result = matrix.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (tall) result = result.t();
  result.div_(at::linalg_vector_norm(result).clamp_min_(own.eps));
  for (int64_t i = 0; i < own.ns_steps; ++i) {
    const at::Tensor gram = at::mm(result, result.t());
    result = at::addmm(result, at::addmm(gram, gram, gram, b, c), result, a);
  }
  return tall ? result.t() : result;
}

double adjusted(const MuonOptions& own, const at::Tensor& parameter) {
  const auto rows = static_cast<double>(parameter.size(0));
  const auto columns = static_cast<double>(parameter.size(1));
  const std::string how = own.adjust_lr_fn.value_or("original");
  if (how == "match_rms_adamw") return own.lr * (0.2 * std::sqrt(std::max(rows, columns)));
  if (how == "spectral_unclamped") return own.lr * std::sqrt(rows / columns);
  return own.lr * std::sqrt(std::max(1.0, rows / columns));
}

const std::vector<ParamGroup<MuonOptions>>& only_matrices(
    const std::vector<ParamGroup<MuonOptions>>& groups) {
  for (const ParamGroup<MuonOptions>& group : groups) {
    for (const auto& [name, parameter] : group.parameters) {
      if (!parameter.defined() || parameter.dim() == 2) continue;
      throw ValueError(concat("Muon: parameter '", name, "' has shape ", parameter.sizes(),
                              ", expected two dimensions; give it to another optimizer"));
    }
  }
  return groups;
}

}  // namespace

Muon::Muon(const std::vector<ParamGroup<MuonOptions>>& groups)
    : GroupedOptimizer(only_matrices(groups)) {}

Muon::Muon(NamedTensors parameters, MuonOptions options)
    : Muon(std::vector<ParamGroup<MuonOptions>>{{std::move(parameters), std::move(options)}}) {}

void Muon::update(size_t group, Batch& batch) {
  const MuonOptions& own = options(group);
  TensorVector& buffers = batch.state[0];
  at::_foreach_lerp_(buffers, batch.gradients, 1 - own.momentum);
  TensorVector* directions = &buffers;
  if (own.nesterov) {
    directions = &copied(batch, batch.gradients, 0);
    at::_foreach_lerp_(*directions, buffers, own.momentum);
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    at::Tensor& parameter = batch.parameters[i];
    const at::Tensor step = orthogonal((*directions)[i], own);
    parameter.mul_(1 - own.lr * own.weight_decay);
    parameter.add_(step, -adjusted(own, parameter));
  }
}

void visit_options(OptionVisitor& visitor, MuonOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.number("momentum", options.momentum, kNotNegative);
  visitor.flag("nesterov", options.nesterov);
  visitor.numbers("ns_coefficients", options.ns_coefficients, kAnyNumber);
  visitor.number("eps", options.eps, kAnyNumber);
  visitor.integer("ns_steps", options.ns_steps, {.low = 0, .high = 99});
  visitor.word("adjust_lr_fn", options.adjust_lr_fn,
               {"original", "match_rms_adamw", "spectral_unclamped"});
  visitor.implementation(options.implementation, kOnlySingle);
}

const StateLayout& state_layout(const MuonOptions& /*options*/) {
  static const StateLayout layout{"Muon", {{"momentum_buffer"}}};
  return layout;
}

StateNeeds state_needs(const MuonOptions& options) {
  return {.fields = {{{true}}}, .work = options.nesterov ? 1U : 0U, .one_by_one = true};
}

}  // namespace bellows::optim
