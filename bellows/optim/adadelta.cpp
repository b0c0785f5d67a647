#include "bellows/optim/adadelta.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {

void Adadelta::update(size_t group, Batch& batch) {
  const AdadeltaOptions& own = options(group);
  TensorVector& square = batch.state[1];
  TensorVector& accumulated = batch.state[2];
  advance(batch.state[0]);
  const TensorVector& gradients = with_decay(batch, own.maximize, own.weight_decay, 2);
  at::_foreach_mul_(square, own.rho);
  at::_foreach_addcmul_(square, gradients, gradients, 1 - own.rho);
  TensorVector& root = copied(batch, square, 0);
  at::_foreach_add_(root, own.eps);
  at::_foreach_sqrt_(root);
  TensorVector& deltas = copied(batch, accumulated, 1);
  at::_foreach_add_(deltas, own.eps);
  at::_foreach_sqrt_(deltas);
  at::_foreach_div_(deltas, root);
  at::_foreach_mul_(deltas, gradients);
  at::_foreach_mul_(accumulated, own.rho);
  at::_foreach_addcmul_(accumulated, deltas, deltas, 1 - own.rho);
  at::_foreach_add_(batch.parameters, deltas, -own.lr);
}

void visit_options(OptionVisitor& visitor, AdadeltaOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.number("rho", options.rho, {.low = 0, .high = 1});
  visitor.number("eps", options.eps, kNotNegative);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kForeachOrSingle);
}

const StateLayout& state_layout(const AdadeltaOptions& /*options*/) {
  static const StateLayout layout{"Adadelta",
                                  {{"step", Extent::count}, {"square_avg"}, {"acc_delta"}}};
  return layout;
}

StateNeeds state_needs(const AdadeltaOptions& options) {
  return {.fields = {{{true}, {true}, {true}}},
          .work = 2 + lists_for_decay(options.maximize, options.weight_decay),
          .one_by_one = options.implementation == Implementation::single};
}

}  // namespace bellows::optim
