#include "bellows/optim/sgd.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_sgd.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {
namespace {

bool is_fused(const SGDOptions& own) {
  return own.implementation == Implementation::automatic ||
         own.implementation == Implementation::fused;
}

void foreach_update(Batch& batch, const SGDOptions& own) {
  TensorVector* direction = &with_decay(batch, own.maximize, own.weight_decay, 0);
  if (own.momentum != 0) {
    TensorVector& buffers = batch.state[0];
    if (batch.fresh) {
      at::_foreach_copy_(buffers, *direction);
    } else {
      at::_foreach_mul_(buffers, own.momentum);
      at::_foreach_add_(buffers, *direction, 1 - own.dampening);
    }
    if (own.nesterov) {
      direction = &copied(batch, *direction, 0);
      at::_foreach_add_(*direction, buffers, own.momentum);
    } else {
      direction = &buffers;
    }
  }
  at::_foreach_add_(batch.parameters, *direction, -own.lr);
}

}  // namespace

void SGD::update(size_t group, Batch& batch) {
  const SGDOptions& own = options(group);
  if (!is_fused(own)) return foreach_update(batch, own);
  at::_fused_sgd_(batch.parameters, batch.gradients, batch.state[0], own.weight_decay, own.momentum,
                  own.lr, own.dampening, own.nesterov, own.maximize, batch.fresh);
}

void visit_options(OptionVisitor& visitor, SGDOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.number("momentum", options.momentum, kNotNegative);
  visitor.number("dampening", options.dampening, kAnyNumber);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.flag("nesterov", options.nesterov);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kAlsoFused);
  visitor.rule("nesterov", !options.nesterov || (options.momentum > 0 && options.dampening == 0),
               "got true, which needs a momentum above 0 and no dampening");
}

const StateLayout& state_layout(const SGDOptions& /*options*/) {
  static const StateLayout layout{"SGD", {{"momentum_buffer"}}};
  return layout;
}

StateNeeds state_needs(const SGDOptions& options) {
  return {.fields = {{{options.momentum != 0}}},
          .work = !is_fused(options) &&
                          (options.nesterov || options.maximize || options.weight_decay != 0)
                      ? 1U
                      : 0U,
          .one_by_one = options.implementation == Implementation::single};
}

}  // namespace bellows::optim
