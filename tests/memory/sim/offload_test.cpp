#include "bellows/memory/offload.h"

#include <gmock/gmock.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>

#include "bellows/core/error.h"
#include "bellows/device/memory.h"
#include "bellows/device/sim.h"
#include "bellows/memory/checkpoint.h"

namespace bellows::memory {
namespace {

c10::Device device() {
  return sim::device(0);
}

struct Net {
  std::vector<at::Tensor> weights;
  explicit Net(c10::Device where) {
    for (uint64_t i = 0; i < 6; ++i)
      weights.push_back((at::randn({64, 64}, at::detail::createCPUGenerator(i)) * 0.1)
                            .to(where)
                            .requires_grad_());
  }
  at::Tensor loss(at::Tensor x) const {
    for (const at::Tensor& w : weights) x = at::relu(at::tanh(at::linear(x, w)));
    return x.square().sum();
  }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> out;
    for (const at::Tensor& w : weights) {
      out.push_back(w.grad().clone());
      w.mutable_grad().reset();
    }
    return out;
  }
};

at::Tensor input(c10::Device where) {
  return at::randn({2048, 64}, at::detail::createCPUGenerator(9)).to(where);
}

TEST(Offload, GradientsAreTheSameAndTheDeviceHoldsLess) {
  const Net net(device());
  const at::Tensor x = input(device());
  const int64_t start = memory_stats(device()).allocated;
  at::Tensor loss = net.loss(x);
  const int64_t plain = memory_stats(device()).allocated - start;
  loss.backward();
  auto expected = net.gradients();
  loss.reset();
  OffloadStats stats;
  {
    const OffloadGuard guard(device());
    loss = net.loss(x);
    synchronize(device());
    EXPECT_LT(memory_stats(device()).allocated - start, plain / 5);
    loss.backward();
    stats = guard.stats();
  }
  auto got = net.gradients();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
  EXPECT_EQ(stats.from_host, stats.to_host);
  EXPECT_GT(stats.prefetched, stats.tensors / 2);
  loss.reset();
  got.clear();
  expected.clear();
  synchronize(device());
  EXPECT_EQ(memory_stats(device()).allocated, start);
}

TEST(Offload, MemoryThatIsSavedTwiceIsMovedOnce) {
  const Net net(device());
  const at::Tensor x = input(device());
  const OffloadGuard guard(device());
  const at::Tensor loss = net.loss(x);
  // x, six results of tanh, six of relu; relu's result is the next layer's input.
  EXPECT_EQ(guard.stats().tensors, 13);
}

TEST(Offload, BackwardAfterTheGuardHasEndedAndTwice) {
  const Net net(device());
  const at::Tensor x = input(device());
  net.loss(x).backward();
  const auto expected = net.gradients();
  at::Tensor loss;
  {
    const OffloadGuard guard(device(), {.prefetch = 0});
    loss = net.loss(x);
  }
  for (int time = 0; time < 2; ++time) {
    loss.backward({}, /*retain_graph=*/true);
    const auto got = net.gradients();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
  }
}

TEST(Offload, SmallTensorsAndParametersStay) {
  const Net net(device());
  const OffloadGuard guard(device(), {.least_bytes = 1 << 30});
  net.loss(input(device())).backward();
  EXPECT_EQ(guard.stats().tensors, 0);
}

TEST(Offload, OnTheCpuItDoesNothing) {
  const Net net(c10::kCPU);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    const OffloadGuard guard(c10::kCPU);
    EXPECT_FALSE(saved_tensor_hooks_on());
    net.loss(input(c10::kCPU)).backward();
    EXPECT_EQ(guard.stats().tensors, 0);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("no effect on the CPU"), std::string::npos);
  EXPECT_EQ(said.find("no effect on the CPU"), said.rfind("no effect on the CPU"));
}

TEST(Offload, OptionsOutOfRangeAreRefused) {
  EXPECT_THROW(OffloadGuard(device(), {.prefetch = -1}), ValueError);
}

TEST(CheckpointOnADevice, IsThePlainRunInTheEnginesThreadWithItsGenerator) {
  const Net net(device());
  const at::Tensor x = input(device());
  const auto block = [&net](const at::Tensor& x) {
    return at::dropout(net.loss(x) * x, 0.5, /*train=*/true).sin();
  };
  const auto run = [&](bool recompute) {
    at::manual_seed(3);
    const at::Tensor y = recompute ? checkpoint(block, x) : block(x);
    at::dropout(y, 0.5, true).sum().backward();
    return net.gradients();
  };
  const auto expected = run(false), got = run(true);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
}

TEST(CheckpointOnADevice, AutocastIsAsInTheFirstRun) {
  const Net net(device());
  const at::Tensor x = input(device());
  const auto run = [&](bool recompute) {
    const auto kind = device().type();
    at::Tensor loss;
    at::autocast::set_autocast_enabled(kind, true);
    at::autocast::set_autocast_dtype(kind, at::kBFloat16);
    at::autocast::increment_nesting();
    loss = recompute ? checkpoint([&net](const at::Tensor& x) { return net.loss(x); }, x)
                     : net.loss(x);
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(kind, false);
    loss.backward();
    return net.gradients();
  };
  const auto expected = run(false), got = run(true);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
}

TEST(CheckpointOnADevice, OnTwoDevicesAtOnce) {
  device();
  const c10::Device other = sim::device(1);
  const Net a(device()), b(other);
  const at::Tensor x = input(device());
  const auto both = [&](const at::Tensor& x) {
    return a.loss(x) + b.loss(x.to(other)).to(x.device());
  };
  both(x).backward();
  const auto first = a.gradients(), second = b.gradients();
  checkpoint(both, x).backward();
  const auto again = a.gradients(), other_again = b.gradients();
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::equal(first[i], again[i])) << i;
    EXPECT_TRUE(at::equal(second[i], other_again[i])) << i;
  }
}

}  // namespace
}  // namespace bellows::memory
