#include "bellows/optim/clip.h"

#include <cmath>
#include <gmock/gmock.h>
#include <limits>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows::optim {
namespace {

NamedTensors with_gradients(const std::vector<at::Tensor>& gradients) {
  NamedTensors parameters;
  for (const at::Tensor& gradient : gradients) {
    at::Tensor parameter = at::zeros(gradient.sizes(), gradient.options()).set_requires_grad(true);
    parameter.mutable_grad() = gradient.clone();
    parameters.emplace_back("p" + std::to_string(parameters.size()), parameter);
  }
  return parameters;
}

double joint_norm(const NamedTensors& parameters) {
  double sum = 0;
  for (const auto& [name, parameter] : parameters) {
    sum += parameter.grad().to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

TEST(ClipGradNormTest, ScalesToTheLargestNormAndReturnsTheOneBefore) {
  const NamedTensors parameters =
      with_gradients({at::randn({300, 200}), at::randn({7}), at::randn({})});
  const double before = joint_norm(parameters);
  const at::Tensor norm = clip_grad_norm_(parameters, 2.0);
  EXPECT_EQ(norm.dim(), 0);
  EXPECT_NEAR(norm.item<double>(), before, 1e-4 * before);
  EXPECT_NEAR(joint_norm(parameters), 2.0, 1e-4);
}

// Large sets are worked on by several threads; no bit may depend on that.
TEST(ClipGradNormTest, ManyGradientsHaveTheBitsOfOneAtATime) {
  std::vector<at::Tensor> gradients;
  for (int64_t i = 0; i < 90; ++i) gradients.push_back(at::randn({16'001 + i}));
  gradients.push_back(at::randn({700, 1'001}));
  gradients.push_back(at::randn({50, 60}).t());
  const NamedTensors parameters = with_gradients(gradients);
  std::vector<at::Tensor> norms;
  for (const at::Tensor& gradient : gradients) norms.push_back(at::linalg_vector_norm(gradient, 2));
  const at::Tensor norm = at::linalg_vector_norm(at::stack(norms));
  const at::Tensor factor = norm.add(1e-6).reciprocal().mul(3.0);

  EXPECT_TRUE(at::equal(clip_grad_norm_(parameters, 3.0), norm));
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(parameters[i].second.grad(), gradients[i].mul(factor))) << i;
  }
}

TEST(ClipGradNormTest, SmallGradientsKeepTheirBits) {
  const NamedTensors parameters = with_gradients({at::randn({50})});
  const at::Tensor before = parameters[0].second.grad().clone();
  clip_grad_norm_(parameters, 1e6);
  EXPECT_TRUE(at::equal(parameters[0].second.grad(), before));
}

TEST(ClipGradNormTest, MixedTypesHaveOneJointNorm) {
  const NamedTensors parameters =
      with_gradients({at::full({4}, 3.0), at::full({4}, 4.0, at::kDouble)});
  EXPECT_NEAR(clip_grad_norm_(parameters, 1.0).item<double>(), 10.0, 1e-6);
  EXPECT_NEAR(joint_norm(parameters), 1.0, 1e-6);
}

TEST(ClipGradNormTest, ParametersWithoutGradientDoNotCount) {
  NamedTensors parameters = with_gradients({at::full({4}, 3.0)});
  parameters.emplace_back("unused", at::zeros({4}).set_requires_grad(true));
  EXPECT_EQ(clip_grad_norm_(parameters, 1.0).item<float>(), 6.0f);
  EXPECT_EQ(clip_grad_norm_({}, 1.0).item<float>(), 0.0f);
}

TEST(ClipGradNormTest, InfiniteNormIsReturnedAndSpreads) {
  const float infinity = std::numeric_limits<float>::infinity();
  const NamedTensors parameters = with_gradients({at::full({2}, infinity), at::full({2}, 1.0)});
  EXPECT_EQ(clip_grad_norm_(parameters, 1.0).item<float>(), infinity);
  EXPECT_TRUE(std::isnan(parameters[0].second.grad()[0].item<float>()));
  EXPECT_EQ(parameters[1].second.grad()[0].item<float>(), 0.0f);
}

TEST(ClipGradNormTest, NegativeOrNanBoundIsRefused) {
  const NamedTensors parameters = with_gradients({at::full({2}, 1.0)});
  EXPECT_THROW(clip_grad_norm_(parameters, -1.0), ValueError);
  EXPECT_THROW(clip_grad_norm_(parameters, std::nan("")), ValueError);
  EXPECT_EQ(parameters[0].second.grad()[0].item<float>(), 1.0f);
}

TEST(ClipGradNormTest, OtherOrdersOfNorm) {
  const NamedTensors parameters = with_gradients({at::full({4}, 3.0), at::full({2}, -4.0)});
  EXPECT_EQ(get_total_norm(parameters, 1).item<float>(), 20.0F);
  EXPECT_EQ(get_total_norm(parameters, std::numeric_limits<double>::infinity()).item<float>(),
            4.0F);
  EXPECT_THROW(get_total_norm(parameters, 0), ValueError);
  EXPECT_THROW(get_total_norm(parameters, std::nan("")), ValueError);
  EXPECT_EQ(clip_grad_norm_(parameters, 10, 1).item<float>(), 20.0F);
  EXPECT_NEAR(get_total_norm(parameters, 1).item<float>(), 10, 1e-5);
}

TEST(ClipGradNormTest, ANormThatIsNotFiniteIsAnErrorWhereAskedFor) {
  const float infinity = std::numeric_limits<float>::infinity();
  const NamedTensors parameters = with_gradients({at::full({2}, infinity), at::full({2}, 1.0)});
  EXPECT_THROW(clip_grad_norm_(parameters, 1.0, 2.0, true), NonFiniteError);
  EXPECT_EQ(parameters[1].second.grad()[0].item<float>(), 1.0F);  // untouched
}

TEST(ClipGradNormTest, ANormThatIsKnownAlreadyIsUsed) {
  const NamedTensors parameters = with_gradients({at::full({4}, 3.0)});
  clip_grads_with_norm_(parameters, 2.0, at::full({}, 4.0));
  EXPECT_NEAR(parameters[0].second.grad()[0].item<float>(), 1.5F, 1e-5);
}

TEST(ClipGradValueTest, LimitsEachValueOnBothSides) {
  const NamedTensors parameters =
      with_gradients({at::full({4}, 3.0), at::full({2}, -4.0), at::full({1}, 0.5, at::kDouble)});
  clip_grad_value_(parameters, 2.5);
  EXPECT_EQ(parameters[0].second.grad()[3].item<float>(), 2.5F);
  EXPECT_EQ(parameters[1].second.grad()[0].item<float>(), -2.5F);
  EXPECT_EQ(parameters[2].second.grad()[0].item<double>(), 0.5);
  EXPECT_THROW(clip_grad_value_(parameters, -1), ValueError);
}

}  // namespace
}  // namespace bellows::optim
