#include "bellows/amp/anomaly.h"

#include <gmock/gmock.h>
#include <limits>
#include <thread>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "bellows/amp/autocast.h"
#include "bellows/core/error.h"
#include "tests/support/message_of.h"

namespace bellows::amp {
namespace {

using bellows::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInf = std::numeric_limits<double>::infinity();

class AnomalyTest : public ::testing::Test {
 protected:
  // Two linear layers with `between` in the middle.
  template <class Between>
  at::Tensor forward(Between between) {
    const at::Tensor hidden = at::linear(x_, w1_, b1_);
    return at::linear(between(hidden), w2_).sum();
  }

  at::Tensor x_ = at::ones({2, 3});
  at::Tensor w1_ = at::zeros({4, 3}).set_requires_grad(true);
  at::Tensor b1_ = at::zeros({4}).set_requires_grad(true);
  at::Tensor w2_ = at::ones({1, 4}).set_requires_grad(true);
  NamedTensors parameters_{
      {"encoder.1.weight", w1_}, {"encoder.1.bias", b1_}, {"head.weight", w2_}};
};

TEST_F(AnomalyTest, AnInfiniteDerivativeNamesOperatorAndModule) {
  const AnomalyMode anomaly(parameters_);
  const at::Tensor loss = forward([](const at::Tensor& h) { return h.sqrt(); });  // at 0
  EXPECT_THAT(message_of<NonFiniteError>([&] { loss.backward(); }),
              AllOf(HasSubstr("the backward of aten::sqrt after module 'encoder.1' (SqrtBackward0) "
                              "made a gradient that is infinite"),
                    HasSubstr("results of the forward pass up to it are finite")));
}

TEST_F(AnomalyTest, ALayersOwnBackwardNamesItsParameters) {
  w2_.detach().fill_(1e30);
  const AnomalyMode anomaly(parameters_);
  const at::Tensor loss = forward([](const at::Tensor& h) { return h; }) * 1e30;
  EXPECT_THAT(message_of<NonFiniteError>([&] { loss.backward(); }),
              HasSubstr("the backward of aten::linear of module 'head' (parameters head.weight)"));
}

TEST_F(AnomalyTest, TheFirstBadResultOfTheForwardPassIsNamed) {
  const AnomalyMode anomaly(parameters_);
  const at::Tensor loss = forward([](const at::Tensor& h) { return h.sub(1).log().exp().mul(2); });
  EXPECT_THAT(message_of<NonFiniteError>([&] { loss.backward(); }),
              HasSubstr("the first such result is that of aten::log after module 'encoder.1'"));
}

TEST_F(AnomalyTest, BadInputIsSaidToBeSo) {
  x_.fill_(std::numeric_limits<double>::quiet_NaN());
  const AnomalyMode anomaly(parameters_);
  const at::Tensor loss = forward([](const at::Tensor& h) { return h.exp(); });
  EXPECT_THAT(message_of<NonFiniteError>([&] { loss.backward(); }),
              AllOf(HasSubstr("that of aten::linear of module 'encoder.1'"),
                    HasSubstr("whose argument input is so too")));
}

// The product of a batch of matrices is made of several parts, each with a node of its own.
TEST_F(AnomalyTest, APartOfAnOperatorCountsToTheOperator) {
  const at::Tensor w = at::full({3, 2}, 1e30).set_requires_grad(true);
  const AnomalyMode anomaly({{"deep.weight", w}});
  const at::Tensor x = at::ones({2, 5, 3}).set_requires_grad(true);
  const at::Tensor loss = (at::matmul(x, w) * 1e30).sum();
  EXPECT_THAT(message_of<NonFiniteError>([&] { loss.backward(); }),
              HasSubstr("of aten::matmul of module 'deep'"));
}

TEST_F(AnomalyTest, AGradientThatBeginsBadIsNotBlamedOnAnOperator) {
  const AnomalyMode anomaly(parameters_);
  const at::Tensor loss = forward([](const at::Tensor& h) { return h.exp(); });
  EXPECT_THAT(message_of<NonFiniteError>([&] { loss.backward(at::full({}, kInf)); }),
              AllOf(HasSubstr("reaches the result of aten::sum"),
                    HasSubstr("the gradient that backward() began with")));
}

TEST_F(AnomalyTest, InfinityMayBeLetPass) {
  const AnomalyMode anomaly(parameters_, {.check_inf = false});
  const at::Tensor infinite = at::zeros({2}).set_requires_grad(true);
  infinite.sqrt().sum().backward();
  EXPECT_EQ(infinite.grad()[0].item<float>(), kInf);
  const at::Tensor nan = at::zeros({2}).set_requires_grad(true);
  EXPECT_THAT(message_of<NonFiniteError>([&] { nan.sqrt().mul(0).sum().backward(); }),
              AllOf(HasSubstr("aten::sqrt"), HasSubstr("NaN")));
}

TEST_F(AnomalyTest, GoodTrainingGoesOnUnchanged) {
  w1_.detach().fill_(0.5);
  const auto gradient = [&] {
    w1_.mutable_grad().reset();
    forward([](const at::Tensor& h) { return h.sqrt(); }).backward();
    return w1_.grad().clone();
  };
  const at::Tensor expected = gradient();
  const AnomalyMode anomaly(parameters_);
  EXPECT_TRUE(at::equal(gradient(), expected));
}

TEST_F(AnomalyTest, MaskingWithInfinityIsNoFault) {
  const AnomalyMode anomaly(parameters_);
  const at::Tensor mask = at::eye(4).to(at::kBool);
  const at::Tensor scores = at::zeros({4, 4}).set_requires_grad(true);
  at::softmax(scores.masked_fill(mask, -kInf), 1).pow(2).sum().backward();
  EXPECT_TRUE(scores.grad().defined());
}

TEST_F(AnomalyTest, OutsideOfTheGuardNothingIsChecked) {
  at::Tensor loss;
  {
    const AnomalyMode anomaly(parameters_);
    loss = forward([](const at::Tensor& h) { return h.sqrt(); });
  }
  EXPECT_NO_THROW(loss.backward());
}

TEST_F(AnomalyTest, ABackwardInAnotherThreadIsChecked) {
  const AnomalyMode anomaly(parameters_);
  const at::Tensor loss = forward([](const at::Tensor& h) { return h.sqrt(); });
  std::string text;
  std::thread([&] { text = message_of<NonFiniteError>([&] { loss.backward(); }); }).join();
  EXPECT_THAT(text, HasSubstr("aten::sqrt after module 'encoder.1'"));
}

TEST_F(AnomalyTest, UnderAutocastTheWeightsAreStillKnown) {
  w2_.detach().fill_(6e4);
  const AnomalyMode anomaly(parameters_);
  const Autocast autocast(at::kCPU, {.dtype = at::kHalf});
  const at::Tensor loss = forward([](const at::Tensor& h) { return h; }).to(at::kFloat) * 2;
  EXPECT_THAT(message_of<NonFiniteError>([&] { loss.backward(); }),
              HasSubstr("aten::linear of module 'head' (parameters head.weight)"));
}

}  // namespace
}  // namespace bellows::amp
