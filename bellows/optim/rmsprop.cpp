#include "bellows/optim/rmsprop.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {

void RMSprop::update(size_t group, Batch& batch) {
  const RMSpropOptions& own = options(group);
  TensorVector& square = batch.state[1];
  TensorVector& buffer = batch.state[2];
  TensorVector& mean = batch.state[3];
  advance(batch.state[0]);
  const TensorVector& gradients = with_decay(batch, own.maximize, own.weight_decay, 1);
  at::_foreach_mul_(square, own.alpha);
  at::_foreach_addcmul_(square, gradients, gradients, 1 - own.alpha);
  TensorVector& root = copied(batch, square, 0);
  if (own.centered) {
    at::_foreach_lerp_(mean, gradients, 1 - own.alpha);
    at::_foreach_addcmul_(root, mean, mean, -1);
  }
  at::_foreach_sqrt_(root);
  at::_foreach_add_(root, own.eps);
  if (own.momentum > 0) {
    at::_foreach_mul_(buffer, own.momentum);
    at::_foreach_addcdiv_(buffer, gradients, root);
    at::_foreach_add_(batch.parameters, buffer, -own.lr);
  } else {
    at::_foreach_addcdiv_(batch.parameters, gradients, root, -own.lr);
  }
}

void visit_options(OptionVisitor& visitor, RMSpropOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.number("alpha", options.alpha, kNotNegative);
  visitor.number("eps", options.eps, kNotNegative);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.number("momentum", options.momentum, kNotNegative);
  visitor.flag("centered", options.centered);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kForeachOrSingle);
}

const StateLayout& state_layout(const RMSpropOptions& /*options*/) {
  static const StateLayout layout{
      "RMSprop", {{"step", Extent::count}, {"square_avg"}, {"momentum_buffer"}, {"grad_avg"}}};
  return layout;
}

StateNeeds state_needs(const RMSpropOptions& options) {
  return {.fields = {{{true}, {true}, {options.momentum > 0}, {options.centered}}},
          .work = 1 + lists_for_decay(options.maximize, options.weight_decay),
          .one_by_one = options.implementation == Implementation::single};
}

}  // namespace bellows::optim
