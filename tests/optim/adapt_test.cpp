#include <gmock/gmock.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "bellows/core/error.h"
#include "bellows/optim/optimizer.h"

namespace bellows::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace lib = torch::optim;

struct Weights {
  at::Tensor a = at::arange(6, at::kFloat).reshape({2, 3}).set_requires_grad(true);
  at::Tensor b = at::full({4}, 2.0).set_requires_grad(true);
  NamedTensors names() const { return {{"a", a}, {"b", b}}; }
  std::vector<at::Tensor> list() const { return {a, b}; }

  at::Tensor loss() const { return a.sin().sum() + b.square().sum(); }
  at::Tensor closure() const {
    a.mutable_grad().reset();
    b.mutable_grad().reset();
    at::Tensor value = loss();
    value.backward();
    return value;
  }
};

template <class Fn>
std::string error_of(Fn fn) {
  try {
    fn();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

void step(lib::Optimizer& optimizer, const Weights& weights) {
  optimizer.step([&] { return weights.closure(); });
}

// Saves after three steps, loads into an optimizer with other options, and goes on.
template <class O, class OptimizerOptions>
void expect_resumes(const OptimizerOptions& options, const OptimizerOptions& others) {
  const Weights straight;
  O unbroken(straight.list(), options);
  for (int i = 0; i < 6; ++i) step(unbroken, straight);

  const Weights stopped;
  O first(stopped.list(), options);
  for (int i = 0; i < 3; ++i) step(first, stopped);
  const Tree saved = adapt(first, stopped.names())->state_dict().map([](const at::Tensor& tensor) {
    return tensor.clone();
  });
  O second({stopped.b, stopped.a}, others);  // in another order
  const auto adapted = adapt(second, stopped.names());
  adapted->load_state_dict(saved);
  EXPECT_EQ(adapted->lr(0), adapt(first, stopped.names())->lr(0));
  for (int i = 0; i < 3; ++i) step(second, stopped);
  EXPECT_TRUE(at::equal(stopped.a, straight.a)) << adapted->name();
  EXPECT_TRUE(at::equal(stopped.b, straight.b)) << adapted->name();
}

TEST(AdaptTest, SgdResumesBitByBit) {
  expect_resumes<lib::SGD>(lib::SGDOptions(0.1).momentum(0.9).nesterov(true), lib::SGDOptions(1.0));
}

TEST(AdaptTest, AdamResumesBitByBit) {
  expect_resumes<lib::Adam>(lib::AdamOptions(0.1).betas({0.8, 0.9}).amsgrad(true),
                            lib::AdamOptions());
}

TEST(AdaptTest, AdamWResumesBitByBit) {
  expect_resumes<lib::AdamW>(lib::AdamWOptions(0.1).weight_decay(0.3), lib::AdamWOptions());
}

TEST(AdaptTest, RmspropResumesBitByBit) {
  expect_resumes<lib::RMSprop>(lib::RMSpropOptions(0.1).momentum(0.5).centered(true),
                               lib::RMSpropOptions());
}

TEST(AdaptTest, AdagradResumesBitByBit) {
  expect_resumes<lib::Adagrad>(lib::AdagradOptions(0.1).lr_decay(0.01), lib::AdagradOptions());
}

TEST(AdaptTest, LbfgsResumesBitByBit) {
  const auto options = lib::LBFGSOptions(0.5).max_iter(4).line_search_fn("strong_wolfe");
  const Weights straight;
  lib::LBFGS unbroken(straight.list(), options);
  for (int i = 0; i < 4; ++i) step(unbroken, straight);

  const Weights stopped;
  lib::LBFGS first(stopped.list(), options);
  for (int i = 0; i < 2; ++i) step(first, stopped);
  lib::LBFGS second(stopped.list());
  adapt(second, stopped.names())->load_state_dict(adapt(first, stopped.names())->state_dict());
  for (int i = 0; i < 2; ++i) step(second, stopped);
  EXPECT_TRUE(at::equal(stopped.a, straight.a));
  EXPECT_TRUE(at::equal(stopped.b, straight.b));
}

TEST(AdaptTest, StepsAndLearningRateReachTheOptimizer) {
  const Weights weights;
  lib::SGD sgd(weights.list(), lib::SGDOptions(0.1));
  const auto adapted = adapt(sgd, weights.names());
  EXPECT_EQ(adapted->name(), "torch::optim::SGD");
  EXPECT_EQ(adapted->lr(0), 0.1);
  adapted->set_lr(0, 0.5);
  weights.b.mutable_grad() = at::ones({4});
  adapted->step();
  EXPECT_TRUE(at::equal(weights.b, at::full({4}, 1.5)));
  EXPECT_THAT(error_of([&] { adapted->set_lr(0, -1); }), HasSubstr("lr: got -1"));
}

TEST(AdaptTest, ZeroGradKeepsViewsOfABucketInPlace) {
  const Weights weights;
  lib::SGD sgd(weights.list(), lib::SGDOptions(0.1));
  const at::Tensor bucket = at::ones({4});
  weights.b.mutable_grad() = bucket.narrow(0, 0, 4);
  adapt(sgd, weights.names())->zero_grad();
  EXPECT_TRUE(weights.b.grad().is_alias_of(bucket));
  EXPECT_TRUE(at::equal(bucket, at::zeros({4})));
}

TEST(AdaptTest, ParametersWithoutANameAreRefused) {
  const Weights weights;
  lib::SGD sgd(weights.list(), lib::SGDOptions(0.1));
  EXPECT_THAT(error_of([&] {
                adapt(sgd, {{"a", weights.a}});
              }),
              HasSubstr("parameter 1 of group 0 (shape [4]) has no name"));
}

TEST(AdaptTest, StateOfAnotherKindOrShapeIsRefused) {
  const Weights weights;
  lib::Adam adam(weights.list());
  lib::AdamW adamw(weights.list());
  const auto from = adapt(adam, weights.names());
  const auto to = adapt(adamw, weights.names());
  EXPECT_THAT(error_of([&] { to->load_state_dict(from->state_dict()); }),
              AllOf(HasSubstr("torch::optim::Adam,"), HasSubstr("torch::optim::AdamW")));
  step(adam, weights);
  Tree state = from->state_dict();
  state.dict().at("state").dict().at("a").dict()["exp_avg"] = at::zeros({5});
  EXPECT_THAT(error_of([&] { from->load_state_dict(state); }),
              HasSubstr("a.exp_avg: got shape [5], expected [2, 3]"));
}

TEST(AdaptTest, LbfgsStepsOnlyWithItsClosure) {
  const Weights weights;
  lib::LBFGS lbfgs(weights.list());
  EXPECT_THAT(error_of([&] { adapt(lbfgs, weights.names())->step(); }), HasSubstr("step(closure)"));
}

TEST(AdaptTest, LbfgsStepsWithAClosure) {
  const Weights weights;
  lib::LBFGS lbfgs(weights.list(), lib::LBFGSOptions(0.5).max_iter(4));
  const auto adapted = adapt(lbfgs, weights.names());
  const float before = adapted->step([&] { return weights.closure(); }).item<float>();
  EXPECT_LT(weights.loss().item<float>(), before);
}

TEST(AdaptTest, MomentumIsTheFirstBetaOrMomentum) {
  const Weights weights;
  lib::AdamW adamw(weights.list(), lib::AdamWOptions(0.1).betas({0.8, 0.9}));
  const auto adapted = adapt(adamw, weights.names());
  EXPECT_EQ(adapted->momentum(0), 0.8);
  adapted->set_momentum(0, 0.7);
  const auto& options = static_cast<lib::AdamWOptions&>(adamw.param_groups()[0].options());
  EXPECT_EQ(options.betas(), std::make_tuple(0.7, 0.9));
  lib::Adagrad adagrad(weights.list());
  const auto without = adapt(adagrad, weights.names());
  EXPECT_EQ(without->momentum(0), std::nullopt);
  EXPECT_THAT(error_of([&] { without->set_momentum(0, 0.5); }), HasSubstr("neither momentum"));
}

TEST(AdaptTest, GroupsAddedLaterAreNoticed) {
  const Weights weights;
  lib::SGD sgd({weights.a}, lib::SGDOptions(0.1));
  const auto adapted = adapt(sgd, weights.names());
  sgd.add_param_group(lib::OptimizerParamGroup({weights.b}));
  EXPECT_THAT(error_of([&] { adapted->step(); }), HasSubstr("2 parameter groups now, 1 when"));
}

class Homemade : public lib::Optimizer {
 public:
  explicit Homemade(const std::vector<at::Tensor>& parameters)
      : Optimizer(parameters, std::make_unique<lib::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

TEST(AdaptTest, UnknownOptimizersStepButCannotBeSaved) {
  const Weights weights;
  Homemade homemade(weights.list());
  const auto adapted = adapt(homemade, weights.names());
  adapted->step();
  EXPECT_EQ(adapted->lr(0), 0.1);
  EXPECT_THAT(error_of([&] { static_cast<void>(adapted->state_dict()); }),
              HasSubstr("known are SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS"));
}

}  // namespace
}  // namespace bellows::optim
