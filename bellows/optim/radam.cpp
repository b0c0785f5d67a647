#include "bellows/optim/radam.h"

#include <cmath>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_reciprocal.h>
#include <ATen/ops/_foreach_sqrt.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {
namespace {

// The rectification at a step; 0 where the variance is not tractable yet.
double rectification(const RAdamOptions& own, double step) {
  const double beta2 = own.betas[1];
  const double infinite = 2 / (1 - beta2) - 1;
  const double rho = infinite - 2 * step * std::pow(beta2, step) / (1 - std::pow(beta2, step));
  if (!(rho > 5)) return 0;
  return std::pow((rho - 4) * (rho - 2) * infinite / ((infinite - 4) * (infinite - 2) * rho), 0.5);
}

}  // namespace

void RAdam::update(size_t group, Batch& batch) {
  const RAdamOptions& own = options(group);
  TensorVector& steps = batch.state[0];
  TensorVector& mean = batch.state[1];
  TensorVector& square = batch.state[2];
  advance(steps);
  const bool decoupled = own.decoupled_weight_decay;
  if (decoupled && own.weight_decay != 0) {
    at::_foreach_mul_(batch.parameters, 1 - own.lr * own.weight_decay);
  }
  const TensorVector& gradients =
      with_decay(batch, own.maximize, decoupled ? 0 : own.weight_decay, 0);
  at::_foreach_lerp_(mean, gradients, 1 - own.betas[0]);
  at::_foreach_mul_(square, own.betas[1]);
  at::_foreach_addcmul_(square, gradients, gradients, 1 - own.betas[1]);

  // The factor of the mean: one of its two terms is 0, whose reciprocal is infinite before.
  TensorVector& factor = copied(batch, square, 0);
  at::_foreach_sqrt_(factor);
  at::_foreach_add_(factor, own.eps);
  at::_foreach_div_(factor, by_step(steps, [&](double step) {
                      const double correction = 1 - std::pow(own.betas[0], step);
                      return -(std::pow(1 - std::pow(own.betas[1], step), 0.5) *
                               (own.lr * rectification(own, step) / correction));
                    }));
  at::_foreach_reciprocal_(factor);
  at::_foreach_add_(factor, by_step(steps, [&](double step) {
                      const double plain = rectification(own, step) > 0 ? 0 : 1;
                      return -(own.lr * plain / (1 - std::pow(own.betas[0], step)));
                    }));
  at::_foreach_addcmul_(batch.parameters, mean, factor);
}

void visit_options(OptionVisitor& visitor, RAdamOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.numbers("betas", options.betas, kBeta);
  visitor.number("eps", options.eps, kNotNegative);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.flag("decoupled_weight_decay", options.decoupled_weight_decay);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kForeachOrSingle);
}

const StateLayout& state_layout(const RAdamOptions& /*options*/) {
  static const StateLayout layout{"RAdam", {{"step", Extent::count}, {"exp_avg"}, {"exp_avg_sq"}}};
  return layout;
}

StateNeeds state_needs(const RAdamOptions& options) {
  return {.fields = {{{true}, {true}, {true}}},
          .work = 1,
          .one_by_one = options.implementation == Implementation::single};
}

}  // namespace bellows::optim
