#include "bellows/optim/lars.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {

void LARS::update(size_t group, Batch& batch) {
  const LARSOptions& own = options(group);
  TensorVector& buffer = batch.state[0];
  const TensorVector ratios =
      norm_ratios(batch.parameters, batch.gradients, own.trust_coefficient, own.weight_decay);
  TensorVector& direction = copied(batch, with_decay(batch, own.maximize, own.weight_decay, 0), 0);
  at::_foreach_mul_(direction, ratios);
  at::_foreach_mul_(buffer, own.momentum);
  at::_foreach_add_(buffer, direction, own.lr);
  at::_foreach_sub_(batch.parameters, buffer);
}

void visit_options(OptionVisitor& visitor, LARSOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.number("momentum", options.momentum, kNotNegative);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.number("trust_coefficient", options.trust_coefficient, kNotNegative);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kForeachOrSingle);
}

const StateLayout& state_layout(const LARSOptions& /*options*/) {
  static const StateLayout layout{"LARS", {{"momentum_buffer"}}};
  return layout;
}

StateNeeds state_needs(const LARSOptions& options) {
  return {.fields = {{{true}}},
          .work = 1,
          .one_by_one = options.implementation == Implementation::single};
}

}  // namespace bellows::optim
