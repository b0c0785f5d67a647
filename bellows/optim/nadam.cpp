#include "bellows/optim/nadam.h"

#include <cmath>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include "bellows/optim/foreach.h"

namespace bellows::optim {
namespace {

// The momentum at a step.
double mu(const NAdamOptions& own, double step) {
  return own.betas[0] * (1.0 - 0.5 * std::pow(0.96, step * own.momentum_decay));
}

}  // namespace

void NAdam::update(size_t group, Batch& batch) {
  const NAdamOptions& own = options(group);
  TensorVector& steps = batch.state[0];
  TensorVector& products = batch.state[1];
  TensorVector& mean = batch.state[2];
  TensorVector& square = batch.state[3];
  advance(steps);
  const bool decoupled = own.decoupled_weight_decay;
  if (decoupled && own.weight_decay != 0) {
    at::_foreach_mul_(batch.parameters, 1 - own.lr * own.weight_decay);
  }
  const TensorVector& gradients =
      with_decay(batch, own.maximize, decoupled ? 0 : own.weight_decay, 1);
  at::_foreach_lerp_(mean, gradients, 1 - own.betas[0]);
  at::_foreach_mul_(square, own.betas[1]);
  at::_foreach_addcmul_(square, gradients, gradients, 1 - own.betas[1]);
  TensorVector& root = copied(batch, square, 0);
  at::_foreach_sqrt_(root);
  at::_foreach_mul_(products, by_step(steps, [&](double step) { return mu(own, step); }));
  at::_foreach_div_(root, by_step(steps, [&](double step) {
                      return std::pow(1 - std::pow(own.betas[1], step), 0.5);
                    }));
  at::_foreach_add_(root, own.eps);

  std::vector<c10::Scalar> of_gradients, of_means;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double step = value_of(steps[i]);
    const double product = value_of(products[i]);
    const double next = mu(own, step + 1);
    of_gradients.emplace_back(-(own.lr * (1.0 - mu(own, step)) / (1.0 - product)));
    of_means.emplace_back(-(own.lr * next / (1.0 - product * next)));
  }
  at::_foreach_addcdiv_(batch.parameters, gradients, root, of_gradients);
  at::_foreach_addcdiv_(batch.parameters, mean, root, of_means);
}

void visit_options(OptionVisitor& visitor, NAdamOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.numbers("betas", options.betas, kBeta);
  visitor.number("eps", options.eps, kNotNegative);
  visitor.number("weight_decay", options.weight_decay, kNotNegative);
  visitor.number("momentum_decay", options.momentum_decay, kNotNegative);
  visitor.flag("decoupled_weight_decay", options.decoupled_weight_decay);
  visitor.flag("maximize", options.maximize);
  visitor.implementation(options.implementation, kForeachOrSingle);
}

const StateLayout& state_layout(const NAdamOptions& /*options*/) {
  static const StateLayout layout{
      "NAdam",
      {{"step", Extent::count}, {"mu_product", Extent::number}, {"exp_avg"}, {"exp_avg_sq"}}};
  return layout;
}

StateNeeds state_needs(const NAdamOptions& options) {
  return {.fields = {{{true}, {true, 1}, {true}, {true}}},
          .work = 1 + lists_for_decay(options.maximize, options.weight_decay),
          .one_by_one = options.implementation == Implementation::single};
}

}  // namespace bellows::optim
