// What must not grow: training loops, meters, a ring of samples.
#include <gmock/gmock.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include "bellows/core/error.h"
#include "bellows/memory/checkpoint.h"
#include "bellows/memory/host_memory.h"
#include "bellows/memory/replay_buffer.h"
#include "bellows/memory/report.h"
#include "bellows/optim/sgd.h"
#include "bellows/train/metrics.h"
#include "tests/support/message_of.h"

namespace bellows::memory {
namespace {

using ::bellows::testing::message_of;
using ::testing::HasSubstr;

TEST(Growth, SgdWithMomentumIsFlatOverAThousandSteps) {
  LeakSentinel sentinel;
  const at::Tensor w = at::randn({512, 512}).requires_grad_();
  optim::SGD optimizer({{"w", w}}, {.lr = 1e-4, .momentum = 0.9});
  const at::Tensor x = at::randn({2, 512});
  int64_t resident = 0;
  for (int step = 0; step < 1000; ++step) {
    optimizer.zero_grad();
    at::linear(x, w).square().mean().backward();
    optimizer.step();
    sentinel.look();
    if (step == 50) resident = resident_bytes();
  }
  EXPECT_NO_THROW(sentinel.check());
  EXPECT_LT(resident_bytes() - resident, 8 << 20);
}

TEST(Growth, TenThousandStepsWithRecomputationAreFlat) {
  LeakSentinel sentinel;
  const at::Tensor w = at::randn({8, 8}).requires_grad_();
  optim::SGD optimizer({{"w", w}}, {.lr = 1e-3});
  const at::Tensor x = at::randn({4, 8});
  for (int step = 0; step < 10000; ++step) {
    optimizer.zero_grad();
    checkpoint([w](const at::Tensor& x) { return at::tanh(at::linear(x, w)); }, x)
        .square()
        .mean()
        .backward();
    optimizer.step();
    if (step % 10 == 0) sentinel.look();
  }
  EXPECT_NO_THROW(sentinel.check());
}

TEST(Growth, SegmentationLossIsFlat) {
  LeakSentinel sentinel;
  const at::Tensor w = at::randn({4, 3, 3, 3}).requires_grad_();
  const at::Tensor x = at::randn({2, 3, 16, 16}), target = at::randint(4, {2, 14, 14}, at::kLong);
  double total = 0;
  for (int step = 0; step < 200; ++step) {
    const at::Tensor loss = at::nll_loss_nd(at::log_softmax(at::conv2d(x, w), 1), target);
    loss.backward();
    w.mutable_grad().reset();
    total += loss.item<double>();
    sentinel.look();
  }
  EXPECT_NO_THROW(sentinel.check());
  EXPECT_GT(total, 0);
}

TEST(Growth, AMeterKeepsNoGraphAlive) {
  const at::Tensor w = at::randn({8, 8}).requires_grad_();
  train::MeanMetrics meter;
  for (int step = 0; step < 500; ++step) {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> saved;
    {
      const at::Tensor hidden = at::tanh(at::linear(at::randn({4, 8}), w));
      saved.emplace(hidden.storage().getWeakStorageImpl());
      meter.add({.loss = hidden.square().mean(), .metrics = {}}, 4, step);
    }
    ASSERT_TRUE(saved->expired());
  }
  meter.collect();
  EXPECT_GT(meter.means().at("loss"), 0);
}

TEST(ReplayBuffer, ARingOfSmallTensorsDoesNotGrow) {
  constexpr int64_t kSamples = 100000;
  ReplayBuffer ring(kSamples);
  LeakSentinel sentinel;
  int64_t first_turn = 0;
  for (int turn = 0; turn < 3; ++turn) {
    for (int64_t i = 0; i < kSamples; ++i) {
      ring.push(
          Tree::Dict{{"state", at::full({4}, static_cast<float>(i))}, {"reward", at::zeros({})}});
      if (i % 1000 == 0) sentinel.look();
    }
    if (turn == 0) first_turn = resident_bytes();
  }
  EXPECT_NO_THROW(sentinel.check());
  EXPECT_LT(static_cast<double>(resident_bytes()), 1.1 * static_cast<double>(first_turn));
}

TEST(ReplayBuffer, KeepsTheLastSamplesAndDrawsFromThem) {
  ReplayBuffer ring(3);
  EXPECT_THROW(ring.sample(1), ValueError);
  for (int64_t i = 0; i < 5; ++i) ring.push(Tree(at::full({2}, i)));
  EXPECT_EQ(ring.size(), 3);
  const at::Tensor drawn = ring.sample(200, at::detail::createCPUGenerator(1)).tensor();
  EXPECT_EQ(drawn.size(0), 200);
  EXPECT_EQ(drawn.min().item<int64_t>(), 2);
  EXPECT_EQ(drawn.max().item<int64_t>(), 4);
  EXPECT_TRUE(at::equal(drawn, ring.sample(200, at::detail::createCPUGenerator(1)).tensor()));
}

TEST(ReplayBuffer, ASampleOfAnotherShapeIsNamed) {
  ReplayBuffer ring(3);
  ring.push(Tree::Dict{{"a", at::zeros({2})}});
  EXPECT_THAT(message_of<ValueError>([&] {
                ring.push(Tree::Dict{{"a", at::zeros({3})}});
              }),
              ::testing::AllOf(HasSubstr("a: got Float [3]"), HasSubstr("expected a: Float [2]")));
  EXPECT_THROW(ring.push(Tree::Dict{{"b", at::zeros({2})}}), ValueError);
  EXPECT_THROW(ring.push(Tree::List{}), ValueError);
  EXPECT_THROW(ReplayBuffer(0), ValueError);
  EXPECT_EQ(ring.size(), 1);
}

TEST(ReplayBuffer, KeepsNoGraphAndComesBackFromItsState) {
  ReplayBuffer ring(4);
  const at::Tensor w = at::randn({2}).requires_grad_();
  for (int i = 0; i < 6; ++i) ring.push(Tree(w * i));
  EXPECT_FALSE(ring.sample(2).tensor().requires_grad());
  ReplayBuffer other(4);
  other.load_state_dict(ring.state_dict());
  const auto draw = [](const ReplayBuffer& from) {
    return from.sample(8, at::detail::createCPUGenerator(3)).tensor();
  };
  EXPECT_TRUE(at::equal(draw(ring), draw(other)));
  other.push(Tree(w.detach() * 100));
  EXPECT_EQ(other.size(), 4);
  EXPECT_THROW(ReplayBuffer(5).load_state_dict(ring.state_dict()), ValueError);
}

}  // namespace
}  // namespace bellows::memory
