#include "bellows/amp/autocast.h"

#include <functional>
#include <gmock/gmock.h>
#include <latch>
#include <stdexcept>
#include <thread>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/optim/sgd.h"
#include "tests/support/message_of.h"

namespace bellows::amp {
namespace {

using bellows::testing::message_of;
using ::testing::HasSubstr;

at::ScalarType product_type(const at::Tensor& a) {
  return at::mm(a, a).scalar_type();
}

at::Tensor weight(double value) {
  return at::full({1, 2}, value).set_requires_grad(true);
}

TEST(AutocastTest, DefaultsArePythons) {
  EXPECT_EQ(autocast_dtype(at::kCUDA), at::kHalf);
  EXPECT_EQ(autocast_dtype(at::kCPU), at::kBFloat16);
  EXPECT_FALSE(is_autocast_enabled(at::kCPU));
  const Autocast autocast(at::kCPU);
  EXPECT_TRUE(is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  EXPECT_EQ(product_type(at::ones({2, 2})), at::kBFloat16);
}

TEST(AutocastTest, KindsOfDevicesHaveStatesOfTheirOwn) {
  const Autocast cpu(at::kCPU);
  EXPECT_FALSE(is_autocast_enabled(at::kCUDA));
  {
    const Autocast cuda({at::kCUDA, 1});
    EXPECT_TRUE(is_autocast_enabled(at::kCUDA));
    EXPECT_TRUE(is_autocast_enabled(at::kCPU));
    const Autocast off(at::kCPU, {.enabled = false});
    EXPECT_TRUE(is_autocast_enabled(at::kCUDA));
    EXPECT_FALSE(is_autocast_enabled(at::kCPU));
  }
  EXPECT_FALSE(is_autocast_enabled(at::kCUDA));
  EXPECT_TRUE(is_autocast_enabled(at::kCPU));
}

TEST(AutocastTest, OffInsideOnRunsInFloat32AndOnAgainInside) {
  const at::Tensor a = at::ones({2, 2});
  const Autocast on(at::kCPU);
  {
    const Autocast off(at::kCPU, {.enabled = false});
    EXPECT_EQ(product_type(a), at::kFloat);
    {
      const Autocast half(at::kCPU, {.dtype = at::kHalf});
      EXPECT_EQ(product_type(a), at::kHalf);
    }
    EXPECT_EQ(product_type(a), at::kFloat);
  }
  EXPECT_EQ(product_type(a), at::kBFloat16);
}

TEST(AutocastTest, AnExceptionLeavesTheStateAsItWas) {
  const Autocast outer(at::kCPU, {.dtype = at::kHalf, .cache_enabled = false});
  try {
    const Autocast inner(at::kCPU, {.dtype = at::kBFloat16, .cache_enabled = true});
    const Autocast off(at::kCPU, {.enabled = false});
    throw std::runtime_error("in the forward pass");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(is_autocast_enabled(at::kCPU));
  EXPECT_EQ(autocast_dtype(at::kCPU), at::kHalf);
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
}

TEST(AutocastTest, WhatItCannotDoIsRefusedBeforeAnythingChanges) {
  EXPECT_THAT(message_of<ValueError>([] { Autocast(at::kCPU, {.dtype = at::kFloat}); }),
              HasSubstr("dtype: got Float, expected Half or BFloat16"));
  EXPECT_THAT(message_of<ValueError>([] { Autocast(at::kMeta); }), HasSubstr("none for meta"));
  EXPECT_THAT(message_of<EnvironmentError>([] { Autocast(at::kHPU); }),
              HasSubstr("call sim::enable()"));
  EXPECT_FALSE(is_autocast_enabled(at::kCPU));
  EXPECT_NO_THROW(Autocast(at::kCPU, {.dtype = at::kFloat, .enabled = false}));
}

// The cast of a weight, and whether anything holds it.
c10::weak_intrusive_ptr<c10::TensorImpl> cast_of(const at::Tensor& weight) {
  return c10::weak_intrusive_ptr<c10::TensorImpl>(
      at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU).getIntrusivePtr());
}

TEST(AutocastTest, CastsOfWeightsLiveUntilTheOutermostGuardEnds) {
  const at::Tensor w = weight(1);
  std::optional<Autocast> outer;
  outer.emplace(at::kCPU);
  c10::weak_intrusive_ptr<c10::TensorImpl> cast = cast_of(w);
  { const Autocast inner(at::kCPU); }
  EXPECT_FALSE(cast.expired());
  outer.reset();
  EXPECT_TRUE(cast.expired());
  outer.emplace(at::kCPU, AutocastOptions{.cache_enabled = false});
  EXPECT_TRUE(cast_of(w).expired());
}

TEST(AutocastTest, AnOptimizersStepUnderAnOpenGuardIsSeen) {
  const at::Tensor w = weight(1);
  optim::SGD sgd({{"w", w}}, {.lr = 1.0});
  const Autocast autocast(at::kCPU);
  const at::Tensor input = at::ones({1, 2});
  EXPECT_EQ(at::linear(input, w).item<float>(), 2);
  w.mutable_grad() = at::full({1, 2}, -3.0);
  sgd.step();
  EXPECT_EQ(at::linear(input, w).item<float>(), 8);
}

TEST(AutocastTest, AWeightChangedByHandIsSeenAfterTheCacheIsCleared) {
  const at::Tensor w = weight(1);
  const Autocast autocast(at::kCPU);
  EXPECT_EQ(at::linear(at::ones({1, 2}), w).item<float>(), 2);
  {
    const c10::NoGradGuard no_grad;
    w.detach().fill_(5);
  }
  clear_autocast_cache();
  EXPECT_EQ(at::linear(at::ones({1, 2}), w).item<float>(), 10);
}

// Of LibTorch: its cache once kept casts without gradient.
TEST(AutocastTest, AForwardPassWithoutGradientsTakesNoneFromTheNext) {
  const at::Tensor w = weight(1);
  const auto forward = [&] { return at::linear(at::ones({1, 2}), w).sum(); };
  const Autocast autocast(at::kCPU);
  {
    const c10::NoGradGuard no_grad;
    forward();
  }
  EXPECT_NO_THROW(forward().backward());
  EXPECT_TRUE(w.grad().defined());
}

// LibTorch's cache holds one cast a weight, whatever its type.
TEST(AutocastTest, AnotherTypeInsideOrInAnotherThreadGetsCastsOfItsOwn) {
  const at::Tensor w = weight(1);
  const auto type = [&] { return at::linear(at::ones({1, 2}), w).scalar_type(); };
  const Autocast outer(at::kCPU, {.dtype = at::kBFloat16});
  EXPECT_EQ(type(), at::kBFloat16);
  {
    const Autocast inner(at::kCPU, {.dtype = at::kHalf});
    EXPECT_EQ(type(), at::kHalf);
  }
  EXPECT_EQ(type(), at::kBFloat16);
  std::thread([&] {
    const Autocast other(at::kCPU, {.dtype = at::kHalf});
    EXPECT_EQ(type(), at::kHalf);
  }).join();
  EXPECT_EQ(type(), at::kBFloat16);
}

// Weights that one thread changes by hand between its guards, while the guards of others are open.
TEST(AutocastTest, NoThreadGetsAStaleCastWhenItsGuardOpens) {
  const at::Tensor w = weight(1);
  const auto value = [&] { return at::linear(at::ones({1, 2}), w).item<float>(); };
  std::latch cast(1), changed(1);
  std::thread other([&] {
    const Autocast autocast(at::kCPU);
    EXPECT_EQ(value(), 2);
    cast.count_down();
    changed.wait();
  });
  cast.wait();
  w.detach().fill_(3);
  {
    const Autocast autocast(at::kCPU);
    EXPECT_EQ(value(), 6);
  }
  changed.count_down();
  other.join();
}

// Four threads, each training a model of its own for 250 steps; every second step is taken while
// its guard is open. The loss is linear, so that every weight is known.
TEST(AutocastTest, FourThreadsTrainWithTheirNewestWeights) {
  const auto train = [](int thread) {
    const at::Tensor w = at::zeros({1, 2}).set_requires_grad(true);
    optim::SGD sgd({{"w", w}}, {.lr = 1.0});
    const at::Tensor input = at::ones({1, 2});
    c10::weak_intrusive_ptr<c10::TensorImpl> last(w.getIntrusivePtr());
    for (int step = 0; step < 250; ++step) {
      sgd.zero_grad();
      std::optional<Autocast> autocast(std::in_place, at::kCPU);
      const at::Tensor out = at::linear(input, w);
      ASSERT_EQ(out.item<float>(), -2.0F * static_cast<float>(step % 100)) << thread;
      last = cast_of(w);
      if (step % 2 == 0) autocast.reset();
      out.sum().backward();
      sgd.step();
      if (step % 100 == 99) w.detach().zero_();
      clear_autocast_cache();
      if (autocast) {
        ASSERT_EQ(at::linear(input, w).item<float>(), -2.0F * static_cast<float>((step + 1) % 100));
      }
    }
    clear_autocast_cache();
    EXPECT_TRUE(last.expired()) << "casts are held after their guards";
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(train, i);
  for (std::thread& thread : threads) thread.join();
}

using Call = std::function<at::Tensor(const at::Tensor& f, const at::Tensor& h)>;
struct Expected {
  std::string name;
  Call call;
  bool lower = false;  // the autocast type; else float32
};

// f is float32 [4, 4], h the same in the autocast type.
const std::vector<Expected> kOperators{
    {"mm", [](auto& f, auto&) { return at::mm(f, f); }, true},
    {"bmm",
     [](auto& f, auto&) {
       return at::bmm(f.view({1, 4, 4}), f.view({1, 4, 4}));
     },
     true},
    {"linear", [](auto& f, auto&) { return at::linear(f, f, f[0]); }, true},
    {"conv2d",
     [](auto& f, auto&) {
       return at::conv2d(f.view({1, 1, 4, 4}), f.view({1, 1, 4, 4}));
     },
     true},
    {"attention",
     [](auto& f, auto&) {
       const at::Tensor q = f.view({1, 1, 4, 4});
       return at::scaled_dot_product_attention(q, q, q);
     },
     true},
    {"relu of lower", [](auto&, auto& h) { return at::relu(h); }, true},
    {"mse_loss", [](auto&, auto& h) { return at::mse_loss(h, h); }},
    {"cross_entropy",
     [](auto&, auto& h) {
       return at::cross_entropy_loss(h, at::zeros({4}, h.options().dtype(at::kLong)));
     }},
    {"bce_with_logits", [](auto&, auto& h) { return at::binary_cross_entropy_with_logits(h, h); }},
    {"prod", [](auto&, auto& h) { return at::prod(h, 1); }},
    {"layer_norm of float32", [](auto& f, auto&) { return at::layer_norm(f, {4}); }},
    {"cat to the widest",
     [](auto& f, auto& h) {
       return at::cat({h, f});
     }},
    {"sum of both", [](auto& f, auto& h) { return f + h; }},
};

TEST(AutocastTest, EachOperatorHasItsType) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor f = at::rand({4, 4}), h = f.to(type);
    const Autocast autocast(at::kCPU, {.dtype = type});
    for (const Expected& one : kOperators)
      EXPECT_EQ(one.call(f, h).scalar_type(), one.lower ? type : at::kFloat) << one.name;
  }
}

}  // namespace
}  // namespace bellows::amp
