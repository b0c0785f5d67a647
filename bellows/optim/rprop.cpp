#include "bellows/optim/rprop.h"

#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_sign.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {

void Rprop::update(size_t group, Batch& batch) {
  const RpropOptions& own = options(group);
  const auto [shrink, grow] = own.etas;
  TensorVector& previous = batch.state[1];
  TensorVector& sizes = batch.state[2];
  advance(batch.state[0]);
  TensorVector& factors = copied(batch, batch.gradients, 0);
  at::_foreach_mul_(factors, previous);
  at::_foreach_copy_(previous, batch.gradients);
  if (own.maximize) {
    at::_foreach_neg_(factors);
    at::_foreach_neg_(previous);
  }
  at::_foreach_sign_(factors);
  for (at::Tensor& factor : factors) {
    factor.masked_fill_(factor.gt(0), grow);
    factor.masked_fill_(factor.lt(0), shrink);
    factor.masked_fill_(factor.eq(0), 1);
  }
  at::_foreach_mul_(sizes, factors);
  at::_foreach_clamp_min_(sizes, own.step_sizes[0]);
  at::_foreach_clamp_max_(sizes, own.step_sizes[1]);
  // A weight whose gradient has changed its sign stays where it is, and knows none next time.
  for (size_t i = 0; i < factors.size(); ++i) previous[i].masked_fill_(factors[i].eq(shrink), 0);
  TensorVector& signs = batch.work[0];
  at::_foreach_copy_(signs, previous);
  at::_foreach_sign_(signs);
  at::_foreach_addcmul_(batch.parameters, signs, sizes, -1);
}

void visit_options(OptionVisitor& visitor, RpropOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.numbers("etas", options.etas, {.low = 0, .above_low = true});
  visitor.numbers("step_sizes", options.step_sizes, kAnyNumber);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kForeachOrSingle);
  visitor.rule("etas", options.etas[0] < 1 && options.etas[1] > 1,
               "expected the first below 1 and the second above 1");
}

const StateLayout& state_layout(const RpropOptions& /*options*/) {
  static const StateLayout layout{"Rprop", {{"step", Extent::count}, {"prev"}, {"step_size"}}};
  return layout;
}

StateNeeds state_needs(const RpropOptions& options) {
  return {.fields = {{{true}, {true}, {true, options.lr}}},
          .work = 1,
          .one_by_one = options.implementation == Implementation::single};
}

}  // namespace bellows::optim
