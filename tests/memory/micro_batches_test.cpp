#include "bellows/memory/micro_batches.h"

#include <gmock/gmock.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "tests/support/message_of.h"

namespace bellows::memory {
namespace {

using ::bellows::testing::message_of;
using ::testing::HasSubstr;

struct Net {
  at::Tensor w = at::randn({10, 8}, at::detail::createCPUGenerator(1)).requires_grad_();
  at::Tensor loss(const Tree& batch) const {
    return at::cross_entropy_loss(at::linear(batch[0].tensor(), w), batch[1].tensor());
  }
  at::Tensor gradient() const {
    at::Tensor out = w.grad().clone();
    w.mutable_grad().reset();
    return out;
  }
};

Tree make_batch(int64_t samples) {
  const auto generator = at::detail::createCPUGenerator(2);
  return Tree::List{at::randn({samples, 8}, generator),
                    at::randint(10, {samples}, generator, at::kLong)};
}

TEST(MicroBatches, GradientsAreThoseOfTheWholeBatch) {
  const Net net;
  for (const int64_t samples : {64, 13, 1}) {
    const Tree batch = make_batch(samples);
    const at::Tensor whole = net.loss(batch);
    whole.backward();
    const at::Tensor expected = net.gradient();
    for (const int64_t parts : {1, 2, 3, 5, 100}) {
      MicroBatches micro({.parts = parts});
      double loss = 0;
      micro.run(
          batch,
          [&](const MicroBatch& part) {
            const at::Tensor own = net.loss(part.batch) * part.weight;
            own.backward();
            loss += own.item<double>();
          },
          [] { FAIL(); });
      EXPECT_LE((net.gradient() - expected).abs().max().item<float>(), 1e-6) << parts;
      EXPECT_NEAR(loss, whole.item<double>(), 1e-6);
    }
  }
}

TEST(MicroBatches, RunningOutOfMemoryHalvesFreesAndGivesTheSameGradients) {
  const Net net;
  const Tree batch = make_batch(128);
  net.loss(batch).backward();
  const at::Tensor expected = net.gradient();
  MicroBatches micro;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> held;
  int undone = 0, steps = 0;
  const auto step = [&](const MicroBatch& part) {
    ++steps;
    if (held) {
      EXPECT_TRUE(held->expired());
      held.reset();
    }
    const at::Tensor activation = at::zeros({part.samples});
    (net.loss(part.batch) * part.weight).backward();  // a part that came through has left gradients
    if (part.samples < 64 && part.index < 1) return;
    if (part.samples < 64) return;
    held.emplace(activation.storage().getWeakStorageImpl());
    TORCH_CHECK_WITH(OutOfMemoryError, false, "injected");
  };
  ::testing::internal::CaptureStderr();
  micro.run(batch, step, [&] {
    ++undone;
    net.w.mutable_grad().reset();
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("out of memory with a batch of 128: from now on in 4 parts"));
  EXPECT_EQ(undone, 2);
  EXPECT_EQ(micro.parts(), 4);
  EXPECT_EQ(steps, 1 + 1 + 4);
  EXPECT_LE((net.gradient() - expected).abs().max().item<float>(), 1e-6);
  steps = 0;
  micro.run(batch, step, [] { FAIL(); });
  EXPECT_EQ(steps, 4) << "the number of parts is kept";
}

TEST(MicroBatches, ARepeatedAttemptDrawsTheSameNumbers) {
  MicroBatches micro;
  std::vector<at::Tensor> drawn;
  at::manual_seed(1);
  micro.run(
      make_batch(2),
      [&](const MicroBatch& part) {
        drawn.push_back(at::randn({3}));
        if (part.count == 1) TORCH_CHECK_WITH(OutOfMemoryError, false, "injected");
      },
      [] {});
  ASSERT_EQ(drawn.size(), 3U);
  EXPECT_TRUE(at::equal(drawn[0], drawn[1]));
  EXPECT_FALSE(at::equal(drawn[1], drawn[2]));
}

TEST(MicroBatches, OneSampleThatDoesNotFitIsTheError) {
  MicroBatches micro;
  EXPECT_THROW(
      micro.run(
          make_batch(4),
          [](const MicroBatch&) { TORCH_CHECK_WITH(OutOfMemoryError, false, "injected"); }, [] {}),
      c10::OutOfMemoryError);
}

TEST(MicroBatches, OtherErrorsPassThrough) {
  MicroBatches micro;
  EXPECT_THROW(
      micro.run(
          make_batch(4), [](const MicroBatch&) { throw ValueError("other"); }, [] { FAIL(); }),
      ValueError);
}

TEST(MicroBatches, ARankFollowsTheOthers) {
  int attempts = 0, undone = 0;
  MicroBatches micro({.agree = [&](bool own) { return own && ++attempts > 1; }});
  micro.run(
      make_batch(4), [](const MicroBatch&) {}, [&] { ++undone; });
  EXPECT_EQ(undone, 1);
  EXPECT_EQ(micro.parts(), 2);
}

TEST(SplitBatch, CutsTensorsAlongTheFirstDimensionAndSharesTheRest) {
  const Tree batch = Tree::Dict{{"x", at::arange(10).view({5, 2})},
                                {"scale", at::scalar_tensor(2)},
                                {"name", "n"},
                                {"y", Tree::List{at::arange(5)}}};
  const auto parts = split_batch(batch, 2);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].samples, 2);
  EXPECT_EQ(parts[1].samples, 3);
  EXPECT_DOUBLE_EQ(parts[0].weight + parts[1].weight, 1);
  EXPECT_TRUE(at::equal(parts[1].batch.at("y")[0].tensor(), at::arange(2, 5)));
  EXPECT_EQ(parts[1].batch.at("scale").tensor().item<int>(), 2);
  EXPECT_EQ(parts[1].batch.at("name").string(), "n");
}

TEST(SplitBatch, DifferentNumbersOfSamplesAreNamed) {
  EXPECT_THAT(message_of<ValueError>([] {
                split_batch(Tree::List{at::zeros({4}), at::zeros({5})}, 2);
              }),
              ::testing::AllOf(HasSubstr("4 samples in input 0"), HasSubstr("5 in input 1")));
  EXPECT_THAT(message_of<ValueError>([] { split_batch(Tree::List{}, 2); }),
              HasSubstr("no samples"));
  EXPECT_THROW(MicroBatches({.parts = 0}), ValueError);
}

}  // namespace
}  // namespace bellows::memory
