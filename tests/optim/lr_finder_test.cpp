#include "bellows/optim/lr_finder.h"

#include <gmock/gmock.h>
#include <stdexcept>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/optim/sgd.h"
#include "tests/support/message_of.h"

namespace bellows::optim {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

/// The least value of a quadratic of curvature 1, which diverges at rates above 2.
struct Problem {
  at::Tensor weight = at::full({3}, 4.0, at::kDouble).set_requires_grad(true);
  SGD optimizer{{{"weight", weight}}, {.lr = 0.123, .momentum = 0.5}};
  int calls = 0;

  LossClosure closure() {
    return [this] {
      ++calls;
      weight.mutable_grad().reset();
      at::Tensor loss = weight.square().sum().mul(0.5);
      loss.backward();
      return loss;
    };
  }
};

TEST(LRFinderTest, RatesRiseExponentiallyUntilTheLossDiverges) {
  Problem problem;
  const auto result = find_lr(problem.optimizer, {{"weight", problem.weight}}, problem.closure(),
                              {.start_lr = 1e-4, .end_lr = 1e3, .steps = 70});
  EXPECT_TRUE(result.diverged);
  ASSERT_GT(result.lrs.size(), 20U);
  EXPECT_LT(result.lrs.size(), 70U);
  EXPECT_EQ(static_cast<size_t>(problem.calls), result.lrs.size());
  EXPECT_NEAR(result.lrs[20] / result.lrs[10], result.lrs[10] / result.lrs[0], 1e-6);
  EXPECT_GT(result.lrs.back(), 1);
  ASSERT_TRUE(result.suggestion);
  EXPECT_GT(*result.suggestion, 1e-3);
  EXPECT_LT(*result.suggestion, 3);
}

TEST(LRFinderTest, ModelAndOptimizerAreAsBefore) {
  Problem problem;
  problem.optimizer.step(problem.closure());
  const at::Tensor weight = problem.weight.detach().clone();
  const at::Tensor buffer = problem.optimizer.state_dict()
                                .at("state")
                                .at("weight")
                                .at("momentum_buffer")
                                .tensor()
                                .clone();
  find_lr(problem.optimizer, {{"weight", problem.weight}}, problem.closure());
  EXPECT_TRUE(at::equal(problem.weight, weight));
  EXPECT_TRUE(at::equal(
      problem.optimizer.state_dict().at("state").at("weight").at("momentum_buffer").tensor(),
      buffer));
  EXPECT_EQ(problem.optimizer.lr(0), 0.123);
  EXPECT_FALSE(problem.weight.grad().defined());
}

TEST(LRFinderTest, AnErrorRestoresToo) {
  Problem problem;
  const at::Tensor weight = problem.weight.detach().clone();
  int calls = 0;
  EXPECT_THROW(find_lr(problem.optimizer, {{"weight", problem.weight}},
                       [&]() -> at::Tensor {
                         if (++calls == 5) throw std::runtime_error("no more batches");
                         return problem.closure()();
                       },
                       {.start_lr = 0.1}),
               std::runtime_error);
  EXPECT_TRUE(at::equal(problem.weight, weight));
  EXPECT_EQ(problem.optimizer.lr(0), 0.123);
}

TEST(LRFinderTest, GroupsKeepTheirProportion) {
  const at::Tensor a = at::ones({1}).set_requires_grad(true),
                   b = at::ones({1}).set_requires_grad(true);
  SGD sgd({{{{"a", a}}, {.lr = 0.1}}, {{{"b", b}}, {.lr = 0.4}}});
  std::vector<double> ratios;
  find_lr(sgd, {{"a", a}, {"b", b}},
          [&] {
            ratios.push_back(sgd.lr(1) / sgd.lr(0));
            return at::ones({});
          },
          {.steps = 3});
  ASSERT_EQ(ratios.size(), 3U);
  for (const double ratio : ratios) EXPECT_NEAR(ratio, 4, 1e-12);
}

TEST(LRFinderTest, WithoutAFallThereIsNoSuggestion) {
  Problem problem;
  const auto result = find_lr(problem.optimizer, {{"weight", problem.weight}},
                              [] { return at::ones({}, at::kDouble); }, {.smoothing = 0});
  EXPECT_FALSE(result.suggestion);
  EXPECT_FALSE(result.diverged);
  EXPECT_EQ(result.lrs.size(), 100U);
}

TEST(LRFinderTest, OptionsAreChecked) {
  Problem problem;
  const auto error = [&](LRFinderOptions options) {
    return message_of<ValueError>(
        [&] { find_lr(problem.optimizer, {}, problem.closure(), options); });
  };
  EXPECT_THAT(error({.start_lr = 0}), HasSubstr("start_lr: got 0"));
  EXPECT_THAT(error({.start_lr = 1, .end_lr = 0.5}), HasSubstr("end_lr"));
  EXPECT_THAT(error({.steps = 1}), HasSubstr("steps: got 1"));
  EXPECT_THAT(error({.smoothing = 1}), HasSubstr("smoothing"));
  EXPECT_THAT(error({.divergence = 1}), HasSubstr("divergence"));
}

}  // namespace
}  // namespace bellows::optim
