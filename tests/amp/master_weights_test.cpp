#include "bellows/amp/master_weights.h"

#include <gmock/gmock.h>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "bellows/amp/precision.h"
#include "bellows/core/error.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"
#include "tests/support/message_of.h"

namespace bellows::amp {
namespace {

using bellows::testing::message_of;
using ::testing::HasSubstr;

MasterWeights::Make sgd(double lr, double momentum = 0) {
  return [=](NamedTensors masters) {
    return std::make_unique<optim::SGD>(std::move(masters),
                                        optim::SGDOptions{.lr = lr, .momentum = momentum});
  };
}

at::Tensor bf16(double value) {
  return at::full({3}, value, at::kBFloat16).set_requires_grad(true);
}

TEST(MasterWeightsTest, StepsTooSmallForThePrecisionAddUp) {
  const at::Tensor plain = bf16(1), kept = bf16(1);
  optim::SGD direct({{"w", plain}}, {.lr = 1e-3});
  MasterWeights masters({{"w", kept}}, sgd(1e-3));
  for (int step = 0; step < 100; ++step) {
    plain.mutable_grad() = at::ones({3}, at::kBFloat16);
    kept.mutable_grad() = at::ones({3}, at::kBFloat16);
    direct.step();
    masters.step();
  }
  EXPECT_EQ(plain[0].item<float>(), 1) << "bfloat16 has 8 bits: 1 - 0.001 is 1";
  EXPECT_NEAR(kept[0].item<float>(), 0.9, 0.004);
  EXPECT_EQ(kept.scalar_type(), at::kBFloat16);
}

// The law: the same as float32 weights with the same gradients, rounded after every step.
TEST(MasterWeightsTest, MastersAreFloat32TrainingBitByBit) {
  const at::Tensor start = at::randn({50}).to(at::kBFloat16);
  const at::Tensor exact = start.to(at::kFloat).set_requires_grad(true);
  const at::Tensor kept = start.clone().set_requires_grad(true);
  optim::AdamW reference({{"w", exact}}, {.lr = 1e-2});
  MasterWeights masters({{"w", kept}}, [](NamedTensors own) {
    return std::make_unique<optim::AdamW>(std::move(own), optim::AdamWOptions{.lr = 1e-2});
  });
  for (int step = 0; step < 20; ++step) {
    const at::Tensor gradient = at::randn({50}).to(at::kBFloat16);
    exact.mutable_grad() = gradient.to(at::kFloat);
    kept.mutable_grad() = gradient.clone();
    reference.step();
    masters.step();
    ASSERT_TRUE(at::equal(kept.detach(), exact.detach().to(at::kBFloat16))) << step;
  }
  EXPECT_TRUE(at::equal(masters.state_dict().at("masters").at("w").tensor(), exact.detach()));
}

TEST(MasterWeightsTest, Float32ParametersAreTheOptimizersOwn) {
  const at::Tensor norm = at::ones({2}).set_requires_grad(true);
  const at::Tensor w = bf16(1);
  MasterWeights masters({{"w", w}, {"norm", norm}}, sgd(0.5));
  EXPECT_TRUE(masters.optimizer().parameters(0)[1].second.is_same(norm));
  EXPECT_TRUE(masters.parameters(0)[0].second.is_same(w));
  norm.mutable_grad() = at::ones({2});
  masters.step();
  EXPECT_EQ(norm[0].item<float>(), 0.5);
  EXPECT_EQ(w[0].item<float>(), 1) << "it has no gradient";
  masters.set_lr(0, 0.25);
  EXPECT_EQ(masters.optimizer().lr(0), 0.25);
}

TEST(MasterWeightsTest, GradientsAreDroppedAndNoneIsKeptForTheMasters) {
  const at::Tensor w = bf16(1);
  MasterWeights masters({{"w", w}}, sgd(0.5));
  w.mutable_grad() = at::ones({3}, at::kBFloat16);
  masters.step();
  EXPECT_FALSE(masters.optimizer().parameters(0)[0].second.grad().defined());
  masters.zero_grad();
  EXPECT_FALSE(w.grad().defined());
  masters.step();
  EXPECT_EQ(w[0].item<float>(), 0.5);
}

TEST(MasterWeightsTest, AResumedRunIsTheUnbrokenOne) {
  const auto gradient = [](int step) { return at::full({3}, 0.01 * (step + 1), at::kBFloat16); };
  const at::Tensor unbroken = bf16(1);
  MasterWeights first({{"w", unbroken}}, sgd(0.1, 0.9));
  Tree saved;
  at::Tensor weights;
  for (int step = 0; step < 10; ++step) {
    if (step == 5) {
      saved = first.state_dict();
      saved = saved.map([](const at::Tensor& tensor) { return tensor.clone(); });
      weights = unbroken.detach().clone();
    }
    unbroken.mutable_grad() = gradient(step);
    first.step();
  }
  for (const bool weights_last : {false, true}) {
    const at::Tensor resumed = bf16(7);
    MasterWeights second({{"w", resumed}}, sgd(0.1, 0.9));
    if (!weights_last) resumed.detach().copy_(weights);
    second.load_state_dict(saved);
    EXPECT_TRUE(at::equal(resumed.detach(), weights));
    if (weights_last) resumed.detach().copy_(weights);
    for (int step = 5; step < 10; ++step) {
      resumed.mutable_grad() = gradient(step);
      second.step();
    }
    EXPECT_TRUE(at::equal(second.state_dict().at("masters").at("w").tensor(),
                          first.state_dict().at("masters").at("w").tensor()))
        << weights_last;
  }
}

TEST(MasterWeightsTest, WeightsLoadedByOthersReplaceTheMasters) {
  const at::Tensor w = bf16(1);
  MasterWeights masters({{"w", w}}, sgd(1));
  w.detach().fill_(5);
  w.mutable_grad() = at::ones({3}, at::kBFloat16);
  masters.step();
  EXPECT_EQ(w[0].item<float>(), 4);
}

TEST(MasterWeightsTest, AStateThatDoesNotFitChangesNothing) {
  const at::Tensor w = bf16(1);
  MasterWeights masters({{"w", w}}, sgd(1));
  Tree state = masters.state_dict();
  state.dict()["masters"] = Tree::Dict{{"w", at::ones({2})}, {"v", at::ones({3})}};
  const std::string text = message_of<ValueError>([&] { masters.load_state_dict(state); });
  EXPECT_THAT(text, HasSubstr("w: got shape [2], expected shape [3]"));
  EXPECT_THAT(text, HasSubstr("v is unknown"));
  EXPECT_THAT(
      message_of<ValueError>([&] { masters.load_state_dict(masters.optimizer().state_dict()); }),
      HasSubstr("the state of 'SGD', which has no float32 masters"));
  EXPECT_EQ(masters.state_dict().at("masters").at("w").tensor()[0].item<float>(), 1);
}

TEST(MasterWeightsTest, AnOptimizerOfOtherTensorsIsRefused) {
  const at::Tensor w = bf16(1);
  EXPECT_THAT(message_of<ValueError>([&] {
                MasterWeights({{"w", w}}, [&](const NamedTensors&) {
                  return std::make_unique<optim::SGD>(NamedTensors{{"w", w}});
                });
              }),
              HasSubstr("'w' is none of the masters"));
  EXPECT_THAT(message_of<ValueError>([&] {
                MasterWeights({{"count", at::ones({1}, at::kLong)}}, sgd(1));
              }),
              HasSubstr("'count' is Long"));
}

}  // namespace
}  // namespace bellows::amp
