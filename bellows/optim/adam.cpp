#include "bellows/optim/adam.h"

#include <cmath>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "bellows/optim/adamw.h"
#include "bellows/optim/foreach.h"

namespace bellows::optim {
namespace {

bool is_fused(Implementation implementation) {
  return implementation == Implementation::automatic || implementation == Implementation::fused;
}

void fused_update(Batch& batch, const AdamOptions& own) {
  advance(batch.state[0]);
  const auto kernel = [&](auto function) {
    function(batch.parameters, batch.gradients, batch.state[1], batch.state[2], batch.state[3],
             batch.state[0], own.lr, own.betas[0], own.betas[1], own.weight_decay, own.eps,
             own.amsgrad, own.maximize);
  };
  if (own.decoupled_weight_decay) {
    kernel([](const auto&... args) { at::_fused_adamw_(args...); });
  } else {
    kernel([](const auto&... args) { at::_fused_adam_(args...); });
  }
}

void foreach_update(Batch& batch, const AdamOptions& own) {
  TensorVector& steps = batch.state[0];
  TensorVector& mean = batch.state[1];
  TensorVector& square = batch.state[2];
  advance(steps);
  const bool decoupled = own.decoupled_weight_decay;
  if (decoupled && own.weight_decay != 0) {
    at::_foreach_mul_(batch.parameters, 1 - own.lr * own.weight_decay);
  }
  const TensorVector& gradients =
      with_decay(batch, own.maximize, decoupled ? 0 : own.weight_decay, 0);
  at::_foreach_lerp_(mean, gradients, 1 - own.betas[0]);
  at::_foreach_mul_(square, own.betas[1]);
  at::_foreach_addcmul_(square, gradients, gradients, 1 - own.betas[1]);
  if (own.amsgrad) at::_foreach_maximum_(batch.state[3], square);

  TensorVector& root = copied(batch, own.amsgrad ? batch.state[3] : square, 0);
  at::_foreach_sqrt_(root);
  at::_foreach_div_(root, by_step(steps, [&](double step) {
                      return std::pow(1 - std::pow(own.betas[1], step), 0.5);
                    }));
  at::_foreach_add_(root, own.eps);
  at::_foreach_addcdiv_(batch.parameters, mean, root, by_step(steps, [&](double step) {
                          return -(own.lr / (1 - std::pow(own.betas[0], step)));
                        }));
}

void adam_update(Batch& batch, const AdamOptions& own) {
  is_fused(own.implementation) ? fused_update(batch, own) : foreach_update(batch, own);
}

AdamOptions as_adam(const AdamWOptions& own) {
  return {.lr = own.lr,
          .betas = own.betas,
          .eps = own.eps,
          .weight_decay = own.weight_decay,
          .amsgrad = own.amsgrad,
          .maximize = own.maximize,
          .decoupled_weight_decay = true,
          .implementation = own.implementation};
}

// The options that both have.
template <class O>
void visit_common(OptionVisitor& visitor, O& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.numbers("betas", options.betas, kBeta);
  visitor.number("eps", options.eps, kNotNegative);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.flag("amsgrad", options.amsgrad);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kAlsoFused);
}

StateLayout layout(const char* name) {
  return {name, {{"step", Extent::count}, {"exp_avg"}, {"exp_avg_sq"}, {"max_exp_avg_sq"}}};
}

}  // namespace

void Adam::update(size_t group, Batch& batch) {
  adam_update(batch, options(group));
}

void AdamW::update(size_t group, Batch& batch) {
  adam_update(batch, as_adam(options(group)));
}

void visit_options(OptionVisitor& visitor, AdamOptions& options) {
  visit_common(visitor, options);
  visitor.flag("decoupled_weight_decay", options.decoupled_weight_decay);
}

void visit_options(OptionVisitor& visitor, AdamWOptions& options) {
  visit_common(visitor, options);
}

const StateLayout& state_layout(const AdamOptions& /*options*/) {
  static const StateLayout all = layout("Adam");
  return all;
}

const StateLayout& state_layout(const AdamWOptions& /*options*/) {
  static const StateLayout all = layout("AdamW");
  return all;
}

StateNeeds state_needs(const AdamOptions& options) {
  const bool fused = is_fused(options.implementation);
  return {.fields = {{{true}, {true}, {true}, {options.amsgrad}}},
          .work = fused ? 0U : 1U,
          .one_by_one = options.implementation == Implementation::single,
          .counts_on_device = fused};
}

StateNeeds state_needs(const AdamWOptions& options) {
  return state_needs(as_adam(options));
}

}  // namespace bellows::optim
