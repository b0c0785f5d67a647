#include "bellows/optim/asgd.h"

#include <algorithm>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_sub.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {

void ASGD::update(size_t group, Batch& batch) {
  const ASGDOptions& own = options(group);
  TensorVector& steps = batch.state[0];
  TensorVector& etas = batch.state[1];
  TensorVector& mus = batch.state[2];
  TensorVector& averages = batch.state[3];
  advance(steps);
  TensorVector& direction = copied(batch, with_decay(batch, own.maximize, own.weight_decay, 0), 0);
  at::_foreach_add_(direction, batch.parameters, own.lambd);
  at::_foreach_addcmul_(batch.parameters, direction, etas, -1);
  TensorVector& difference = copied(batch, batch.parameters, 0);
  at::_foreach_sub_(difference, averages);
  at::_foreach_addcmul_(averages, difference, mus);
  for (size_t i = 0; i < steps.size(); ++i) {
    // In float32, as Python has it.
    etas[i].copy_(
        steps[i].mul(own.lambd * own.lr).add_(1).pow_(own.alpha).reciprocal_().mul_(own.lr));
    mus[i].fill_(1 / std::max(1.0, value_of(steps[i]) - own.t0));
  }
}

void visit_options(OptionVisitor& visitor, ASGDOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.number("lambd", options.lambd, kAnyNumber);
  visitor.number("alpha", options.alpha, kAnyNumber);
  visitor.number("t0", options.t0, kAnyNumber);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kForeachOrSingle);
}

const StateLayout& state_layout(const ASGDOptions& /*options*/) {
  static const StateLayout layout{"ASGD",
                                  {{"step", Extent::count},
                                   {"eta", Extent::device_number},
                                   {"mu", Extent::device_number},
                                   {"ax"}}};
  return layout;
}

StateNeeds state_needs(const ASGDOptions& options) {
  return {.fields = {{{true}, {true, options.lr}, {true, 1}, {true}}},
          .work = 1,
          .one_by_one = options.implementation == Implementation::single};
}

}  // namespace bellows::optim
