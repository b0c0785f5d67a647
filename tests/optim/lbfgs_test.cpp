#include "bellows/optim/lbfgs.h"

#include <gmock/gmock.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/support/message_of.h"

namespace bellows::optim {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

/// A quadratic with its least value at 1 in `a` and -2 in `b`.
struct Problem {
  at::Tensor a = at::full({2, 2}, 3.0, at::kDouble).set_requires_grad(true);
  at::Tensor b = at::full({3}, 5.0, at::kDouble).set_requires_grad(true);
  int evaluations = 0;

  NamedTensors names(bool turned = false) const {
    return turned ? NamedTensors{{"b", b}, {"a", a}} : NamedTensors{{"a", a}, {"b", b}};
  }
  at::Tensor loss() const {
    return a.sub(1)
        .square()
        .sum()
        .mul(4)
        .add(b.add(2).square().sum())
        .add(a.sum().mul(b.sum()).mul(0.1));
  }
  LossClosure closure() {
    return [this] {
      ++evaluations;
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      at::Tensor value = loss();
      value.backward();
      return value;
    };
  }
};

TEST(LbfgsTest, FindsTheLeastValueOfAQuadratic) {
  for (const bool search : {false, true}) {
    Problem problem;
    LBFGSOptions options;
    if (search) options.line_search_fn = "strong_wolfe";
    LBFGS lbfgs(problem.names(), options);
    for (int step = 0; step < 3; ++step) lbfgs.step(problem.closure());
    problem.closure()();
    EXPECT_LT(problem.a.grad().abs().max().item<double>(), 1e-4);
    EXPECT_LT(problem.b.grad().abs().max().item<double>(), 1e-4);
  }
}

TEST(LbfgsTest, MostEvaluationsOfAStepAreKept) {
  Problem problem;
  LBFGS lbfgs(problem.names(), {.lr = 1e-3, .max_iter = 20, .max_eval = 6});
  lbfgs.step(problem.closure());
  EXPECT_EQ(problem.evaluations, 6);
  EXPECT_EQ(lbfgs.state_dict().at("search").at("func_evals").integer(), 6);
}

TEST(LbfgsTest, ReturnsTheLossBeforeTheStep) {
  Problem problem;
  const double before = problem.loss().item<double>();
  LBFGS lbfgs(problem.names());
  EXPECT_EQ(lbfgs.step(problem.closure()).item<double>(), before);
}

TEST(LbfgsTest, StateIsByNameWhateverTheOrder) {
  Problem straight, stopped;
  const LBFGSOptions options{.lr = 0.2, .max_iter = 3, .history_size = 4};
  LBFGS unbroken(straight.names(), options), first(stopped.names(), options);
  for (int step = 0; step < 2; ++step) {
    unbroken.step(straight.closure());
    first.step(stopped.closure());
  }
  const Tree saved = first.state_dict().map([](const at::Tensor& t) { return t.clone(); });
  EXPECT_EQ(saved.at("state").at("b").at("d").tensor().sizes(), stopped.b.sizes());
  LBFGS second(stopped.names(/*turned=*/true));
  second.load_state_dict(saved);
  EXPECT_EQ(second.options().history_size, 4);
  for (int step = 0; step < 2; ++step) {
    unbroken.step(straight.closure());
    second.step(stopped.closure());
  }
  EXPECT_LT(stopped.a.sub(straight.a).abs().max().item<double>(), 1e-12);
  EXPECT_LT(stopped.b.sub(straight.b).abs().max().item<double>(), 1e-12);
}

TEST(LbfgsTest, DamagedStateIsRefusedAndChangesNothing) {
  Problem problem;
  LBFGS lbfgs(problem.names(), {.max_iter = 3});
  lbfgs.step(problem.closure());
  Tree damaged = lbfgs.state_dict();
  const int64_t iterations = damaged.at("search").at("n_iter").integer();
  damaged.dict()["state"].dict()["a"].dict()["d"] = at::ones({7});
  damaged.dict()["state"].dict()["b"].dict().erase("old_dirs");
  const std::string error = message_of<ValueError>([&] { lbfgs.load_state_dict(damaged); });
  EXPECT_THAT(error, HasSubstr("a.d has shape [7], expected [2, 2]"));
  EXPECT_THAT(error, HasSubstr("b.old_dirs is no list"));
  EXPECT_EQ(lbfgs.state_dict().at("search").at("n_iter").integer(), iterations);
}

TEST(LbfgsTest, StepsOnlyWithAClosure) {
  Problem problem;
  LBFGS lbfgs(problem.names());
  EXPECT_THAT(message_of<ValueError>([&] { lbfgs.step(); }), HasSubstr("step(closure)"));
}

TEST(LbfgsTest, SparseGradientsAndMixedTypesAreRefusedByName) {
  Problem problem;
  LBFGS lbfgs(problem.names());
  EXPECT_THAT(message_of<ValueError>([&] {
                lbfgs.step([&] {
                  problem.b.mutable_grad() = at::ones({3}, at::kDouble).to_sparse();
                  return at::zeros({});
                });
              }),
              HasSubstr("the gradient of 'b' is Sparse"));
  const at::Tensor other = at::ones({2}).set_requires_grad(true);
  LBFGS mixed({{"a", problem.a}, {"other", other}});
  EXPECT_THAT(message_of<ValueError>([&] { mixed.step(problem.closure()); }),
              HasSubstr("'other' is Float"));
}

TEST(LbfgsTest, OptionsOutOfRangeAreRefusedByName) {
  const Problem problem;
  LBFGSOptions options;
  options.line_search_fn = "wolfe";
  EXPECT_THAT(message_of<ValueError>([&] { LBFGS(problem.names(), options); }),
              HasSubstr("line_search_fn: got 'wolfe', expected one of strong_wolfe"));
  EXPECT_THAT(message_of<ValueError>([&] { LBFGS(problem.names(), {.lr = -1}); }),
              HasSubstr("LBFGS: lr: got -1"));
}

}  // namespace
}  // namespace bellows::optim
