#include "bellows/optim/adagrad.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adagrad.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {
namespace {

bool is_fused(const AdagradOptions& own) {
  return own.implementation == Implementation::automatic ||
         own.implementation == Implementation::fused;
}

void foreach_update(Batch& batch, const AdagradOptions& own) {
  TensorVector& steps = batch.state[0];
  TensorVector& sums = batch.state[1];
  advance(steps);
  TensorVector& gradients = with_decay(batch, own.maximize, own.weight_decay, 0);
  at::_foreach_addcmul_(sums, gradients, gradients, 1);
  TensorVector& root = copied(batch, sums, 1);
  at::_foreach_sqrt_(root);
  at::_foreach_add_(root, own.eps);
  TensorVector& scaled = copied(batch, gradients, 0);
  at::_foreach_mul_(scaled, by_step(steps, [&](double step) {
                      return -own.lr / (1 + (step - 1) * own.lr_decay);
                    }));
  at::_foreach_addcdiv_(batch.parameters, scaled, root);
}

}  // namespace

void Adagrad::update(size_t group, Batch& batch) {
  const AdagradOptions& own = options(group);
  if (!is_fused(own)) return foreach_update(batch, own);
  advance(batch.state[0]);
  at::_fused_adagrad_(batch.parameters, batch.gradients, batch.state[1], batch.state[0], own.lr,
                      own.lr_decay, own.weight_decay, own.eps, own.maximize);
}

void visit_options(OptionVisitor& visitor, AdagradOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.number("lr_decay", options.lr_decay, kNotNegative);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.number("initial_accumulator_value", options.initial_accumulator_value, kNotNegative);
  visitor.number("eps", options.eps, kNotNegative);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kAlsoFused);
}

const StateLayout& state_layout(const AdagradOptions& /*options*/) {
  static const StateLayout layout{"Adagrad", {{"step", Extent::count}, {"sum"}}};
  return layout;
}

StateNeeds state_needs(const AdagradOptions& options) {
  const bool fused = is_fused(options);
  return {.fields = {{{true}, {true, options.initial_accumulator_value}}},
          .work = fused ? 0U : 2U,
          .one_by_one = options.implementation == Implementation::single,
          .counts_on_device = fused};
}

}  // namespace bellows::optim
