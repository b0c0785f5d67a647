#include "bellows/optim/schedule.h"

#include <algorithm>
#include <cmath>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/optim/schedule_checks.h"

namespace bellows::optim {
namespace {

std::vector<RateFunction> checked(const char* schedule, std::vector<RateFunction> functions) {
  const bool empty = std::ranges::any_of(functions, [](const RateFunction& f) { return !f; });
  require(!functions.empty() && !empty, schedule, "lr_lambda", "an empty function", "a function");
  return functions;
}

}  // namespace

std::optional<double> Schedule::momentum(int64_t /*step*/, size_t /*group*/) const {
  return std::nullopt;
}

LinearLR::LinearLR(LinearLROptions options) : options_(options) {
  require(options_.start_factor > 0 && options_.start_factor <= 1, "LinearLR", "start_factor",
          options_.start_factor, "above 0 and at most 1");
  require(options_.end_factor >= 0 && options_.end_factor <= 1, "LinearLR", "end_factor",
          options_.end_factor, "0 to 1");
  require_at_least(1, "LinearLR", "total_iters", options_.total_iters);
}

double LinearLR::factor(int64_t step) const {
  const auto done = static_cast<double>(std::clamp<int64_t>(step, 0, options_.total_iters));
  return options_.start_factor + (options_.end_factor - options_.start_factor) * done /
                                     static_cast<double>(options_.total_iters);
}

ConstantLR::ConstantLR(ConstantLROptions options) : options_(options) {
  require(options_.factor >= 0 && options_.factor <= 1, "ConstantLR", "factor", options_.factor,
          "0 to 1");
  require_at_least(0, "ConstantLR", "total_iters", options_.total_iters);
}

double ConstantLR::factor(int64_t step) const {
  return step >= options_.total_iters ? 1 : options_.factor;
}

StepLR::StepLR(StepLROptions options) : options_(options) {
  require_at_least(1, "StepLR", "step_size", options_.step_size);
  require_factor("StepLR", "gamma", options_.gamma);
}

double StepLR::factor(int64_t step) const {
  return std::pow(options_.gamma, static_cast<double>(step / options_.step_size));
}

MultiStepLR::MultiStepLR(MultiStepLROptions options) : options_(std::move(options)) {
  require_factor("MultiStepLR", "gamma", options_.gamma);
  std::ranges::sort(options_.milestones);
  // Never come to; Python passes them by, too.
  std::erase_if(options_.milestones, [](int64_t milestone) { return milestone < 0; });
}

double MultiStepLR::factor(int64_t step) const {
  const auto passed = std::ranges::upper_bound(options_.milestones, step);
  return std::pow(options_.gamma, static_cast<double>(passed - options_.milestones.begin()));
}

ExponentialLR::ExponentialLR(double gamma) : gamma_(gamma) {
  require_factor("ExponentialLR", "gamma", gamma);
}

double ExponentialLR::factor(int64_t step) const {
  return std::pow(gamma_, static_cast<double>(step));
}

PolynomialLR::PolynomialLR(PolynomialLROptions options) : options_(options) {
  require_at_least(1, "PolynomialLR", "total_iters", options_.total_iters);
  require_factor("PolynomialLR", "power", options_.power);
}

double PolynomialLR::factor(int64_t step) const {
  const auto done = static_cast<double>(std::min(step, options_.total_iters));
  return std::pow(1.0 - done / static_cast<double>(options_.total_iters), options_.power);
}

LambdaLR::LambdaLR(std::vector<RateFunction> lr_lambda)
    : lambdas_(checked("LambdaLR", std::move(lr_lambda))) {}

LambdaLR::LambdaLR(RateFunction lr_lambda) : LambdaLR(std::vector{std::move(lr_lambda)}) {}

double LambdaLR::rate(double initial, int64_t step, size_t group) const {
  return initial * of_group("LambdaLR", "lr_lambda", lambdas_, group)(step);
}

MultiplicativeLR::MultiplicativeLR(std::vector<RateFunction> lr_lambda)
    : lambdas_(checked("MultiplicativeLR", std::move(lr_lambda))) {}

MultiplicativeLR::MultiplicativeLR(RateFunction lr_lambda)
    : MultiplicativeLR(std::vector{std::move(lr_lambda)}) {}

double MultiplicativeLR::rate(double initial, int64_t step, size_t group) const {
  const RateFunction& lambda = of_group("MultiplicativeLR", "lr_lambda", lambdas_, group);
  if (products_.size() <= group) products_.resize(group + 1);
  Product& product = products_[group];
  if (product.step > step) product = {};
  while (product.step < step) product.value *= lambda(++product.step);
  return initial * product.value;
}

}  // namespace bellows::optim
