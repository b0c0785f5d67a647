#include "bellows/memory/saved_tensors.h"

#include <atomic>
#include <thread>

#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include "bellows/core/error.h"
#include "tests/support/message_of.h"

namespace bellows::memory {
namespace {

using ::bellows::testing::message_of;

struct Counts {
  std::atomic<int> packed = 0, unpacked = 0, parameters = 0, dropped = 0;
};

// Keeps a copy of what it is given.
class Copy : public SavedTensor {
 public:
  explicit Copy(Counts& counts) : counts_(counts) {}
  ~Copy() override { ++counts_.dropped; }
  void pack(const at::Tensor& tensor, bool parameter) override {
    ++counts_.packed;
    counts_.parameters += parameter;
    copy_ = tensor.clone();
  }
  at::Tensor unpack() override {
    ++counts_.unpacked;
    return copy_;
  }

 private:
  Counts& counts_;
  at::Tensor copy_;
};

SavedTensorFactory copies(Counts& counts) {
  return [&counts] { return std::make_unique<Copy>(counts); };
}

struct Net {
  at::Tensor w1 = at::randn({6, 4}).requires_grad_(), w2 = at::randn({3, 6}).requires_grad_();
  at::Tensor loss(const at::Tensor& x) const {
    return at::linear(at::relu(at::linear(x, w1)), w2).exp().sum();
  }
};

TEST(SavedTensors, GradientsAreTheSameThroughHooks) {
  const Net net;
  const at::Tensor x = at::randn({5, 4});
  net.loss(x).backward();
  const at::Tensor g1 = net.w1.grad().clone(), g2 = net.w2.grad().clone();
  net.w1.mutable_grad().reset();
  net.w2.mutable_grad().reset();
  Counts counts;
  at::Tensor loss;
  {
    const SavedTensorGuard guard(copies(counts));
    EXPECT_TRUE(saved_tensor_hooks_on());
    loss = net.loss(x);
  }
  EXPECT_FALSE(saved_tensor_hooks_on());
  EXPECT_GT(counts.packed, 3);
  EXPECT_EQ(counts.unpacked, 0);
  loss.backward();
  EXPECT_EQ(counts.unpacked, counts.packed);
  EXPECT_EQ(counts.dropped, counts.packed);
  EXPECT_TRUE(at::equal(net.w1.grad(), g1));
  EXPECT_TRUE(at::equal(net.w2.grad(), g2));
}

TEST(SavedTensors, ParametersAndTheirViewsAreToldApart) {
  const Net net;
  Counts counts;
  const SavedTensorGuard guard(copies(counts));
  const at::Tensor y = at::linear(at::randn({5, 4}).requires_grad_(), net.w1);
  EXPECT_EQ(counts.parameters, 2);  // the input is a leaf as well, the weight a view of one
  const int before = counts.parameters;
  at::linear(y, net.w2);
  EXPECT_EQ(counts.parameters, before + 1);
}

TEST(SavedTensors, AChangeInPlaceIsFoundThoughHooksAreOn) {
  const at::Tensor x = at::ones({2}).requires_grad_();
  Counts counts;
  at::Tensor y, loss;
  {
    const SavedTensorGuard guard(copies(counts));
    y = at::exp(x);
    loss = y.sum();
  }
  y.add_(5);
  const std::string said = message_of<c10::Error>([&] { loss.backward(); });
  EXPECT_NE(said.find("modified by an inplace operation"), std::string::npos) << said;
  EXPECT_NE(said.find("[2]"), std::string::npos) << said;
  EXPECT_NE(said.find("at version 1; expected version 0"), std::string::npos) << said;
}

TEST(SavedTensors, TheInnermostGuardIsAskedAlone) {
  const at::Tensor x = at::ones({2}).requires_grad_();
  Counts outer, inner;
  const SavedTensorGuard a(copies(outer));
  {
    const SavedTensorGuard b(copies(inner));
    at::exp(x);
  }
  EXPECT_EQ(outer.packed, 0);
  EXPECT_EQ(inner.packed, 1);
  at::exp(x);
  EXPECT_EQ(outer.packed, 1);
}

TEST(SavedTensors, OtherThreadsAreNotConcerned) {
  const at::Tensor x = at::ones({2}).requires_grad_();
  Counts counts;
  const SavedTensorGuard guard(copies(counts));
  std::thread([&] { at::exp(x); }).join();
  EXPECT_EQ(counts.packed, 0);
}

TEST(SavedTensors, AFactoryMayLeaveATensorToAutograd) {
  const at::Tensor x = at::ones({2}).requires_grad_();
  const SavedTensorGuard guard([] { return nullptr; });
  at::exp(x).sum().backward();
  EXPECT_GT(x.grad()[0].item<float>(), 2.7F);
}

TEST(SavedTensors, ABackwardThatMakesAGraphSavesThroughHooks) {
  const at::Tensor x = at::ones({2}).requires_grad_();
  const at::Tensor y = at::exp(x).sum();
  Counts counts;
  const SavedTensorGuard guard(copies(counts));
  const auto first = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true,
                                           /*create_graph=*/true);
  EXPECT_GT(counts.packed, 0);
  first[0].sum().backward();
  EXPECT_FLOAT_EQ(x.grad()[0].item<float>(), std::exp(1.0F));
}

TEST(SavedTensors, AnotherEngineIsRefusedWithASentence) {
  using torch::autograd::Engine;
  static Engine* own = &Engine::get_default_engine();
  torch::autograd::set_default_engine_stub(&Engine::get_base_engine);
  const std::string said =
      message_of<EnvironmentError>([] { SavedTensorGuard guard([] { return nullptr; }); });
  torch::autograd::set_default_engine_stub([]() -> Engine& { return *own; });
  EXPECT_NE(said.find("autograd engine is another one"), std::string::npos) << said;
}

}  // namespace
}  // namespace bellows::memory
