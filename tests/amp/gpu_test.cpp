// What only a machine with an NVIDIA device can show.
#include <gmock/gmock.h>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "bellows/amp/anomaly.h"
#include "bellows/amp/autocast.h"
#include "bellows/amp/grad_scaler.h"
#include "bellows/amp/master_weights.h"
#include "bellows/amp/precision.h"
#include "bellows/core/error.h"
#include "bellows/device/device.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"
#include "tests/support/message_of.h"

namespace bellows::amp {
namespace {

class AmpGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaReport report = cuda_report();
    if (!report.usable()) GTEST_SKIP() << report.sentence;
  }
  at::TensorOptions on_device() const { return at::TensorOptions(cuda_); }
  const c10::Device cuda_{c10::kCUDA, 0};
};

TEST_F(AmpGpuTest, AutocastIsFloat16UnlessAskedOtherwise) {
  const at::Tensor a = at::rand({4, 4}, on_device());
  const Autocast autocast(cuda_);
  EXPECT_EQ(at::mm(a, a).scalar_type(), at::kHalf);
  EXPECT_EQ(at::exp(at::mm(a, a)).scalar_type(), at::kFloat);
  const Autocast bf16(cuda_, {.dtype = at::kBFloat16});
  EXPECT_EQ(at::mm(a, a).scalar_type(), at::kBFloat16);
}

TEST_F(AmpGpuTest, OverflowSkipsAndTheScaleComesDownAndUp) {
  const at::Tensor w = at::ones({1, 8}, on_device()).set_requires_grad(true);
  const at::Tensor host = at::ones({2}).set_requires_grad(true);
  optim::AdamW adamw({{"w", w}, {"host", host}}, {.lr = 1e-2});
  GradScaler scaler({.growth_interval = 2});
  for (int step = 0; step < 8; ++step) {
    adamw.zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast(cuda_);
      loss = at::linear(at::ones({4, 8}, on_device()), w).to(at::kFloat).mean();
    }
    const float bad = step == 2 ? std::numeric_limits<float>::infinity() : 1.0F;
    scaler.scale(loss + host.sum().to(cuda_) * bad).backward();
    EXPECT_EQ(scaler.step(adamw), step != 2) << step;
    scaler.update();
  }
  EXPECT_EQ(scaler.steps_skipped(), 1);
  EXPECT_GT(scaler.get_scale(), 65536);
  EXPECT_LT(w.max().item<float>(), 1);
}

TEST_F(AmpGpuTest, SmallGradientsSurviveFloat16) {
  const at::Tensor w = at::full({1, 4}, 0.5, on_device()).set_requires_grad(true);
  optim::SGD sgd({{"w", w}}, {.lr = 0.0});
  GradScaler scaler;
  at::Tensor loss;
  {
    const Autocast autocast(cuda_);
    loss = at::linear(at::ones({1, 4}, on_device()), w).to(at::kFloat).sum() * 1e-8;
  }
  scaler.scale(loss).backward();
  scaler.unscale_(sgd);
  EXPECT_NEAR(w.grad()[0][0].item<float>(), 1e-8, 1e-11);
}

TEST_F(AmpGpuTest, MastersAreFloat32Training) {
  const at::Tensor kept = at::ones({3}, on_device().dtype(at::kBFloat16)).set_requires_grad(true);
  MasterWeights masters({{"w", kept}}, [](NamedTensors own) {
    return std::make_unique<optim::SGD>(std::move(own), optim::SGDOptions{.lr = 1e-3});
  });
  for (int step = 0; step < 100; ++step) {
    kept.mutable_grad() = at::ones_like(kept);
    masters.step();
  }
  EXPECT_NEAR(kept[0].item<float>(), 0.9, 0.004);
}

TEST_F(AmpGpuTest, AnomaliesAreFoundInTheDevicesThread) {
  const at::Tensor w = at::zeros({2, 2}, on_device()).set_requires_grad(true);
  const AnomalyMode anomaly({{"block.3.weight", w}});
  const at::Tensor loss = at::linear(at::ones({2, 2}, on_device()), w).sqrt().sum();
  EXPECT_THAT(bellows::testing::message_of<NonFiniteError>([&] { loss.backward(); }),
              ::testing::HasSubstr("aten::sqrt after module 'block.3'"));
}

TEST_F(AmpGpuTest, Tf32ChangesMatrixProducts) {
  const at::Tensor a = at::rand({512, 512}, on_device());
  const at::Tensor exact = at::mm(a.to(at::kDouble), a.to(at::kDouble)).to(at::kFloat);
  const auto error = [&] { return (at::mm(a, a) - exact).abs().max().item<float>(); };
  set_allow_tf32(false);
  const float precise = error();
  set_allow_tf32(true);
  const float coarse = error();
  set_allow_tf32(false);
  EXPECT_GT(coarse, precise * 10);
}

}  // namespace
}  // namespace bellows::amp
