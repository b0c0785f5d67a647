#include "bellows/optim/lion.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sign.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {

void Lion::update(size_t group, Batch& batch) {
  const LionOptions& own = options(group);
  TensorVector& mean = batch.state[0];
  const TensorVector& gradients = with_decay(batch, own.maximize, 0, 1);
  if (own.weight_decay != 0) at::_foreach_mul_(batch.parameters, 1 - own.lr * own.weight_decay);
  TensorVector& direction = copied(batch, mean, 0);
  at::_foreach_lerp_(direction, gradients, 1 - own.betas[0]);
  at::_foreach_sign_(direction);
  at::_foreach_add_(batch.parameters, direction, -own.lr);
  at::_foreach_lerp_(mean, gradients, 1 - own.betas[1]);
}

void visit_options(OptionVisitor& visitor, LionOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.numbers("betas", options.betas, kBeta);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kForeachOrSingle);
}

const StateLayout& state_layout(const LionOptions& /*options*/) {
  static const StateLayout layout{"Lion", {{"exp_avg"}}};
  return layout;
}

StateNeeds state_needs(const LionOptions& options) {
  return {.fields = {{{true}}},
          .work = 1 + lists_for_decay(options.maximize, 0),
          .one_by_one = options.implementation == Implementation::single};
}

}  // namespace bellows::optim
