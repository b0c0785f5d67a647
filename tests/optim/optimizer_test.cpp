#include "bellows/optim/optimizer.h"

#include <gmock/gmock.h>
#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"

namespace bellows::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor parameter(at::IntArrayRef shape, double value = 1.0) {
  return at::full(shape, value).set_requires_grad(true);
}

template <class Fn>
std::string error_of(Fn fn) {
  try {
    fn();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

// Three parameters with fixed values; gradients depend on name and step alone.
NamedTensors fixed_parameters() {
  NamedTensors parameters;
  for (const char* name : {"a", "b", "c"}) {
    const at::Tensor value = at::arange(12, at::kFloat).reshape({3, 4}).mul(name[0]);
    parameters.emplace_back(name, value.set_requires_grad(true));
  }
  return parameters;
}

void set_gradients(const NamedTensors& parameters, int step) {
  for (const auto& [name, parameter] : parameters) {
    const at::Tensor base = at::arange(12, at::kFloat).reshape({3, 4});
    parameter.mutable_grad() = base.sub(5.5).mul(name[0] * 0.01).add(0.1 * step).sin();
  }
}

void run(Optimizer& optimizer, const NamedTensors& parameters, int from, int to) {
  for (int step = from; step < to; ++step) {
    set_gradients(parameters, step);
    optimizer.step();
    optimizer.zero_grad();
  }
}

void expect_equal(const NamedTensors& got, const NamedTensors& expected) {
  for (const auto& [name, tensor] : expected) {
    const auto found = std::ranges::find(got, name, &NamedTensors::value_type::first);
    ASSERT_NE(found, got.end());
    EXPECT_TRUE(at::equal(found->second, tensor)) << name;
  }
}

TEST(OptimizerTest, DefaultsArePyTorchs) {
  const SGDOptions sgd;
  EXPECT_EQ(sgd.lr, 1e-3);
  EXPECT_EQ(sgd.momentum + sgd.dampening + sgd.weight_decay, 0);
  const AdamWOptions adamw;
  EXPECT_EQ(adamw.lr, 1e-3);
  EXPECT_EQ(adamw.betas, (std::array<double, 2>{0.9, 0.999}));
  EXPECT_EQ(adamw.eps, 1e-8);
  EXPECT_EQ(adamw.weight_decay, 1e-2);
}

TEST(OptimizerTest, OneStepOfSgdSubtractsTheScaledGradient) {
  const at::Tensor weight = parameter({2});
  SGD sgd({{"w", weight}}, {.lr = 0.5});
  weight.mutable_grad() = at::full({2}, 4.0);
  sgd.step();
  EXPECT_TRUE(at::equal(weight, at::full({2}, -1.0)));
}

TEST(OptimizerTest, ParametersWithoutGradientAndTheirStateAreLeftAlone) {
  const at::Tensor used = parameter({2});
  const at::Tensor unused = parameter({2});
  AdamW adamw({{"used", used}, {"unused", unused}});
  used.mutable_grad() = at::ones({2});
  adamw.step();
  EXPECT_TRUE(at::equal(unused, at::ones({2})));
  EXPECT_FALSE(at::equal(used, at::ones({2})));
  EXPECT_FALSE(adamw.state_dict().at("state").contains("unused"));
}

TEST(OptimizerTest, MomentumOfALateParameterBeginsWithItsFirstGradient) {
  const at::Tensor early = parameter({1});
  const at::Tensor late = parameter({1}, 0.0);
  SGD sgd({{"early", early}, {"late", late}}, {.lr = 1.0, .momentum = 0.5, .dampening = 0.5});
  early.mutable_grad() = at::ones({1});
  sgd.step();
  late.mutable_grad() = at::full({1}, 2.0);
  sgd.step();  // late: momentum 2
  EXPECT_EQ(late.item<float>(), -2.0f);
  sgd.step();  // late: momentum 0.5 * 2 + 0.5 * 2
  EXPECT_EQ(late.item<float>(), -4.0f);
  EXPECT_EQ(early.item<float>(), 1.0f - 1.0f - 1.0f - 1.0f);
}

TEST(OptimizerTest, GroupsHaveTheirOwnOptions) {
  const at::Tensor slow = parameter({1});
  const at::Tensor fast = parameter({1});
  SGD sgd({{.parameters = {{"slow", slow}}, .options = {.lr = 0.25}},
           {.parameters = {{"fast", fast}}, .options = {.lr = 1.0}}});
  sgd.set_lr(0, 0.5);
  EXPECT_EQ(sgd.lr(0), 0.5);
  slow.mutable_grad() = at::ones({1});
  fast.mutable_grad() = at::ones({1});
  sgd.step();
  EXPECT_EQ(slow.item<float>(), 0.5f);
  EXPECT_EQ(fast.item<float>(), 0.0f);
}

TEST(OptimizerTest, GradientsOfAnotherLayoutAreReadByElement) {
  const at::Tensor weight = at::zeros({3, 4}).set_requires_grad(true);
  SGD sgd({{"w", weight}}, {.lr = 1.0});
  const at::Tensor gradient = at::arange(12, at::kFloat).reshape({4, 3}).t();
  weight.mutable_grad() = gradient;
  sgd.step();
  EXPECT_TRUE(at::equal(weight.detach(), gradient.neg()));
}

TEST(OptimizerTest, StateFollowsAParameterMovedToAnotherTypeOrLayout) {
  at::Tensor weight = at::randn({2, 3, 4, 4}).set_requires_grad(true);
  at::Tensor reference = weight.detach().clone().to(at::kDouble).set_requires_grad(true);
  AdamW moved({{"w", weight}});
  AdamW steady({{"w", reference}});
  for (int step = 0; step < 4; ++step) {
    if (step == 1) weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    if (step == 2) weight.set_data(weight.detach().to(at::kDouble));
    reference.mutable_grad() = at::randn_like(reference.detach());
    weight.mutable_grad() = reference.grad().to(weight.scalar_type());
    moved.step();
    steady.step();
  }
  EXPECT_LT(weight.detach().sub(reference.detach()).abs().max().item<double>(), 1e-4);
  EXPECT_EQ(moved.state_dict().at("state").at("w").at("exp_avg").tensor().scalar_type(),
            at::kDouble);
}

TEST(OptimizerTest, GradientOfAnotherTypeIsNamed) {
  at::Tensor weight = parameter({2});
  SGD sgd({{"fc.weight", weight}});
  weight.mutable_grad() = at::ones({2});
  weight.unsafeGetTensorImpl()->set_autograd_meta(nullptr);
  at::Tensor moved = at::ones({2}, at::kDouble);
  weight.set_data(moved);
  // A gradient that was left behind.
  weight.set_requires_grad(true);
  weight.mutable_grad() = at::ones({2});
  EXPECT_THAT(error_of([&] { sgd.step(); }),
              AllOf(HasSubstr("'fc.weight' is Double on cpu"), HasSubstr("gradient Float on cpu")));
}

TEST(OptimizerTest, ZeroGradDropsGradientsAndFreesThem) {
  const at::Tensor weight = parameter({2});
  AdamW adamw({{"w", weight}});
  at::Tensor gradient = at::ones({2});
  weight.mutable_grad() = gradient;
  adamw.step();
  adamw.zero_grad();
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_EQ(gradient.use_count(), 1U);
}

TEST(OptimizerTest, ZeroGradKeepsViewsOfABucketInPlace) {
  const at::Tensor bucket = at::ones({6});
  const at::Tensor a = parameter({2, 2});
  const at::Tensor b = parameter({2});
  a.mutable_grad() = bucket.narrow(0, 0, 4).view({2, 2});
  b.mutable_grad() = bucket.narrow(0, 4, 2);
  SGD sgd({{"a", a}, {"b", b}});
  sgd.step();
  sgd.zero_grad();
  ASSERT_TRUE(a.grad().defined());
  EXPECT_TRUE(a.grad().is_alias_of(bucket));
  EXPECT_TRUE(at::equal(bucket, at::zeros({6})));
}

TEST(OptimizerTest, GradientsFromBackwardAreDropped) {
  const at::Tensor weight = parameter({2, 3});
  SGD sgd({{"w", weight}});
  weight.t().mul(2).sum().backward();
  ASSERT_TRUE(weight.grad().defined());
  sgd.zero_grad();
  EXPECT_FALSE(weight.grad().defined());
}

TEST(OptimizerTest, ZeroGradCanKeepTheMemory) {
  const at::Tensor weight = parameter({2});
  SGD sgd({{"w", weight}});
  weight.mutable_grad() = at::ones({2});
  const void* memory = weight.grad().data_ptr();
  sgd.zero_grad(false);
  EXPECT_EQ(weight.grad().data_ptr(), memory);
  EXPECT_TRUE(at::equal(weight.grad(), at::zeros({2})));
}

TEST(OptimizerTest, BadParametersAreRefusedByName) {
  const at::Tensor weight = parameter({2});
  const auto refusal = [](NamedTensors parameters) {
    return error_of([&] { SGD sgd(std::move(parameters)); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("got no parameters"));
  EXPECT_THAT(refusal({{"w", weight}, {"w", parameter({2})}}),
              HasSubstr("two parameters named 'w'"));
  EXPECT_THAT(refusal({{"w", weight}, {"tied", weight}}),
              HasSubstr("'w' and 'tied' are the same tensor"));
  EXPECT_THAT(refusal({{"n", at::ones({2}, at::kLong)}}), HasSubstr("'n' has type Long"));
  EXPECT_THAT(refusal({{"r", weight.mul(2)}}), HasSubstr("'r' is the result of a computation"));
  EXPECT_THAT(refusal({{"u", at::Tensor()}}), HasSubstr("'u' is undefined"));
  EXPECT_THAT(refusal({{"s", at::ones({4, 4}).narrow(1, 0, 2)}}),
              HasSubstr("'s' does not fill its memory"));
  EXPECT_THAT(error_of([&] {
                SGD sgd({{.parameters = {{"w", weight}}}, {.parameters = {{"v", weight}}}});
              }),
              HasSubstr("same tensor"));
}

TEST(OptimizerTest, OptionsOutOfRangeAreRefusedByName) {
  const NamedTensors one = {{"w", parameter({2})}};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(error_of([&] { SGD sgd(one, {.lr = -1}); }), HasSubstr("SGD: lr: got -1"));
  EXPECT_THAT(error_of([&] { SGD sgd(one, {.lr = nan}); }), HasSubstr("SGD: lr: got nan"));
  EXPECT_THAT(error_of([&] { SGD sgd(one, {.momentum = -1}); }), HasSubstr("momentum: got -1"));
  EXPECT_THAT(error_of([&] { SGD sgd(one, {.nesterov = true}); }), HasSubstr("nesterov"));
  EXPECT_THAT(error_of([&] {
                AdamW adamw(one, {.betas = {0.9, 1.0}});
              }),
              HasSubstr("AdamW: betas[1]: got 1"));
  EXPECT_THAT(error_of([&] { AdamW adamw(one, {.eps = -1}); }), HasSubstr("eps: got -1"));
  SGD sgd(one);
  EXPECT_THAT(error_of([&] { sgd.set_lr(0, nan); }), HasSubstr("lr: got nan"));
  EXPECT_THAT(error_of([&] { sgd.set_lr(1, 0.1); }), HasSubstr("got group 1, expected one of 1"));
  EXPECT_EQ(sgd.lr(0), 1e-3);
}

TEST(OptimizerTest, RestoredOptimizerContinuesBitByBit) {
  NamedTensors straight = fixed_parameters();
  AdamW unbroken(straight, {.lr = 3e-2, .amsgrad = true});
  run(unbroken, straight, 0, 10);

  NamedTensors stopped = fixed_parameters();
  AdamW first(stopped, {.lr = 3e-2, .amsgrad = true});
  run(first, stopped, 0, 5);
  // Built with the defaults; the parameters come in another order and in two groups.
  AdamW second({{.parameters = {stopped[2]}}, {.parameters = {stopped[1], stopped[0]}}});
  second.load_state_dict(first.state_dict());
  EXPECT_EQ(second.lr(1), 3e-2);
  EXPECT_TRUE(second.options(0).amsgrad);
  run(second, stopped, 5, 10);
  expect_equal(stopped, straight);
}

TEST(OptimizerTest, LoadedStateIsACopy) {
  NamedTensors parameters = fixed_parameters();
  SGD first(parameters, {.momentum = 0.9});
  run(first, parameters, 0, 2);
  SGD second(parameters);
  second.load_state_dict(first.state_dict());
  const auto buffer = [](const SGD& sgd) {
    return sgd.state_dict().at("state").at("a").at("momentum_buffer").tensor();
  };
  EXPECT_TRUE(at::equal(buffer(first), buffer(second)));
  EXPECT_FALSE(buffer(first).is_alias_of(buffer(second)));
}

TEST(OptimizerTest, EmptyStateForgetsWhatWasThere) {
  NamedTensors parameters = fixed_parameters();
  AdamW adamw(parameters);
  const Tree fresh = adamw.state_dict();
  run(adamw, parameters, 0, 2);
  adamw.load_state_dict(fresh);
  EXPECT_TRUE(adamw.state_dict().at("state").dict().empty());
}

TEST(OptimizerTest, StateOfOtherParametersIsRefusedWithAllNames) {
  NamedTensors parameters = fixed_parameters();
  AdamW saved(parameters);
  run(saved, parameters, 0, 1);
  const at::Tensor reshaped = parameter({2, 2});
  AdamW other({{"a", reshaped}, {"b", parameters[1].second}, {"d", parameter({1})}});
  const std::string error = error_of([&] { other.load_state_dict(saved.state_dict()); });
  EXPECT_THAT(error, AllOf(HasSubstr("missing: d"), HasSubstr("unexpected: c"),
                           HasSubstr("a.exp_avg has shape [3, 4], expected [2, 2]")));
  EXPECT_TRUE(other.state_dict().at("state").dict().empty());
}

TEST(OptimizerTest, StateOfAnotherKindIsRefusedWithBothNames) {
  NamedTensors parameters = fixed_parameters();
  const SGD sgd(parameters);
  AdamW adamw(parameters);
  EXPECT_THAT(error_of([&] { adamw.load_state_dict(sgd.state_dict()); }),
              HasSubstr("AdamW: got the state of SGD"));
}

TEST(OptimizerTest, DamagedStateIsRefused) {
  NamedTensors parameters = fixed_parameters();
  AdamW adamw(parameters);
  run(adamw, parameters, 0, 1);
  Tree state = adamw.state_dict();
  Tree::Dict& a = state.dict().at("state").dict().at("a").dict();
  a.erase("exp_avg_sq");
  a["step"] = 3;
  a["speed"] = 1.0;
  EXPECT_THAT(error_of([&] { adamw.load_state_dict(state); }),
              AllOf(HasSubstr("a.exp_avg_sq is missing"),
                    HasSubstr("a.step: got integer, expected a tensor"),
                    HasSubstr("a.speed is unknown here")));
}

TEST(OptimizerTest, GroupsSavedWithDifferentOptionsCannotBeJoined) {
  NamedTensors parameters = fixed_parameters();
  const SGD saved({{.parameters = {parameters[0]}, .options = {.lr = 0.1}},
                   {.parameters = {parameters[1], parameters[2]}, .options = {.lr = 0.2}}});
  SGD joined(parameters);
  EXPECT_THAT(error_of([&] { joined.load_state_dict(saved.state_dict()); }),
              HasSubstr("group 0 joins parameters"));
  EXPECT_EQ(joined.lr(0), 1e-3);
}

}  // namespace
}  // namespace bellows::optim
