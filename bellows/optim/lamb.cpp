#include "bellows/optim/lamb.h"

#include <cmath>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {

void LAMB::update(size_t group, Batch& batch) {
  const LAMBOptions& own = options(group);
  TensorVector& steps = batch.state[0];
  TensorVector& mean = batch.state[1];
  TensorVector& square = batch.state[2];
  advance(steps);
  const TensorVector& gradients = with_decay(batch, own.maximize, 0, 0);
  at::_foreach_lerp_(mean, gradients, 1 - own.betas[0]);
  at::_foreach_mul_(square, own.betas[1]);
  at::_foreach_addcmul_(square, gradients, gradients, 1 - own.betas[1]);
  TensorVector& root = copied(batch, square, 1);
  at::_foreach_div_(root,
                    by_step(steps, [&](double step) { return 1 - std::pow(own.betas[1], step); }));
  at::_foreach_sqrt_(root);
  at::_foreach_add_(root, own.eps);
  TensorVector& direction = copied(batch, mean, 0);
  at::_foreach_div_(direction,
                    by_step(steps, [&](double step) { return 1 - std::pow(own.betas[0], step); }));
  at::_foreach_div_(direction, root);
  if (own.weight_decay != 0) at::_foreach_add_(direction, batch.parameters, own.weight_decay);
  at::_foreach_mul_(direction, norm_ratios(batch.parameters, direction));
  at::_foreach_add_(batch.parameters, direction, -own.lr);
}

void visit_options(OptionVisitor& visitor, LAMBOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.numbers("betas", options.betas, kBeta);
  visitor.number("eps", options.eps, kNotNegative);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kForeachOrSingle);
}

const StateLayout& state_layout(const LAMBOptions& /*options*/) {
  static const StateLayout layout{"LAMB", {{"step", Extent::count}, {"exp_avg"}, {"exp_avg_sq"}}};
  return layout;
}

StateNeeds state_needs(const LAMBOptions& options) {
  return {.fields = {{{true}, {true}, {true}}},
          .work = 2,
          .one_by_one = options.implementation == Implementation::single};
}

}  // namespace bellows::optim
