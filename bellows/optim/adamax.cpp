#include "bellows/optim/adamax.h"

#include <cmath>

#include <ATen/ops/_foreach_abs.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {

void Adamax::update(size_t group, Batch& batch) {
  const AdamaxOptions& own = options(group);
  TensorVector& steps = batch.state[0];
  TensorVector& mean = batch.state[1];
  TensorVector& largest = batch.state[2];
  advance(steps);
  const TensorVector& gradients = with_decay(batch, own.maximize, own.weight_decay, 0);
  at::_foreach_lerp_(mean, gradients, 1 - own.betas[0]);
  at::_foreach_mul_(largest, own.betas[1]);
  TensorVector& size = copied(batch, gradients, 0);
  at::_foreach_abs_(size);
  at::_foreach_add_(size, own.eps);
  at::_foreach_maximum_(largest, size);
  at::_foreach_addcdiv_(batch.parameters, mean, largest, by_step(steps, [&](double step) {
                          return -(own.lr / (1 - std::pow(own.betas[0], step)));
                        }));
}

void visit_options(OptionVisitor& visitor, AdamaxOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.numbers("betas", options.betas, kBeta);
  visitor.number("eps", options.eps, kNotNegative);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kForeachOrSingle);
}

const StateLayout& state_layout(const AdamaxOptions& /*options*/) {
  static const StateLayout layout{"Adamax", {{"step", Extent::count}, {"exp_avg"}, {"exp_inf"}}};
  return layout;
}

StateNeeds state_needs(const AdamaxOptions& options) {
  return {.fields = {{{true}, {true}, {true}}},
          .work = 1,
          .one_by_one = options.implementation == Implementation::single};
}

}  // namespace bellows::optim
