// Mixed precision on simulated devices.
#include <gmock/gmock.h>
#include <optional>
#include <thread>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "bellows/amp/anomaly.h"
#include "bellows/amp/autocast.h"
#include "bellows/amp/grad_scaler.h"
#include "bellows/amp/master_weights.h"
#include "bellows/core/error.h"
#include "bellows/device/memory.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"
#include "tests/device/sim/fixture.h"
#include "tests/support/message_of.h"

namespace bellows::amp {
namespace {

using bellows::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

class AmpSimTest : public SimTest {
 protected:
  at::Tensor parameter(c10::Device device) {
    return at::ones({2}, at::TensorOptions(device)).set_requires_grad(true);
  }
};

TEST_F(AmpSimTest, AutocastIsTheCpus) {
  EXPECT_EQ(autocast_dtype(sim0_), at::kBFloat16);
  const at::Tensor a = at::rand({4, 4}), there = a.to(sim0_);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const Autocast cpu(at::kCPU, {.dtype = type}), sim(sim1_, {.dtype = type});
    for (const auto& [mine, theirs] : std::vector<std::pair<at::Tensor, at::Tensor>>{
             {at::mm(a, a), at::mm(there, there)},
             {at::mse_loss(at::mm(a, a), a), at::mse_loss(at::mm(there, there), there)},
             {at::relu(at::linear(a, a)), at::relu(at::linear(there, there))}}) {
      EXPECT_EQ(mine.scalar_type(), theirs.scalar_type());
      EXPECT_TRUE(at::equal(mine, theirs.cpu()));
    }
    const Autocast off(sim0_, {.enabled = false});
    EXPECT_EQ(at::mm(there, there).scalar_type(), at::kFloat);
    EXPECT_EQ(at::mm(a, a).scalar_type(), type);
  }
}

// A step under autocast with a scaler, on whichever device; the last weights and the scale.
std::vector<at::Tensor> train(c10::Device device, at::ScalarType type) {
  const auto on = [&](const at::Tensor& tensor) { return tensor.to(device); };
  const at::Tensor x = on(at::arange(32).to(at::kFloat).view({8, 4}) / 32);
  const at::Tensor w = on(at::full({1, 4}, 0.25)).set_requires_grad(true);
  optim::AdamW adamw({{"w", w}}, {.lr = 1e-2});
  GradScaler scaler({.init_scale = 1024, .growth_interval = 4});
  for (int step = 0; step < 20; ++step) {
    adamw.zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast(device, {.dtype = type});
      loss = at::linear(x, w).to(at::kFloat).pow(2).mean();
    }
    scaler.scale(loss).backward();
    if (step % 7 == 3) w.mutable_grad().fill_(std::numeric_limits<float>::infinity());
    EXPECT_EQ(scaler.step(adamw), step % 7 != 3) << step;
    scaler.update();
  }
  return {w.detach().cpu(), at::full({}, scaler.get_scale())};
}

TEST_F(AmpSimTest, Float16TrainingHasTheCpusBits) {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const auto cpu = train(at::kCPU, type), sim = train(sim0_, type);
    EXPECT_TRUE(at::equal(cpu[0], sim[0]));
    EXPECT_TRUE(at::equal(cpu[1], sim[1]));
  }
}

TEST_F(AmpSimTest, GradientsOnSeveralDevicesAreCheckedTogether) {
  const at::Tensor first = parameter(sim0_), second = parameter(sim1_), host = parameter(at::kCPU);
  optim::SGD sgd({{"first", first}, {"second", second}, {"host", host}}, {.lr = 1.0});
  GradScaler scaler;
  for (const double bad : {0.5, std::numeric_limits<double>::infinity(), 0.25}) {
    sgd.zero_grad();
    const Tree losses =
        scaler.scale(Tree(Tree::List{first.mul(0.5).sum(), second.mul(bad).sum(), host.sum()}));
    for (const Tree& loss : losses.list()) loss.tensor().backward();
    EXPECT_EQ(scaler.step(sgd), bad < 1);
    scaler.update();
  }
  EXPECT_EQ(first[0].item<float>(), 0);
  EXPECT_EQ(second[0].item<float>(), 0.25);
  EXPECT_EQ(host[0].item<float>(), -1);
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST_F(AmpSimTest, CachedCastsAreGoneWithTheOutermostGuard) {
  for (int step = 0; step < 20; ++step) {
    const at::Tensor w = at::ones({64, 64}, at::TensorOptions(sim0_)).set_requires_grad(true);
    const int64_t before = memory_stats(sim0_).allocated;
    {
      const Autocast outer(sim0_);
      const Autocast inner(sim0_);
      at::mm(w, w);
      EXPECT_GT(memory_stats(sim0_).allocated, before) << "the cast";
    }
    ASSERT_EQ(memory_stats(sim0_).allocated, before);
  }
}

TEST_F(AmpSimTest, MastersFollowTheModelToADevice) {
  const at::Tensor w = at::ones({3}, at::kBFloat16).set_requires_grad(true);
  MasterWeights masters({{"w", w}}, [](NamedTensors own) {
    return std::make_unique<optim::AdamW>(std::move(own), optim::AdamWOptions{.lr = 1e-3});
  });
  const auto step = [&] {
    w.mutable_grad() = at::ones_like(w);
    masters.step();
    w.mutable_grad().reset();
  };
  step();
  at::Tensor(w).set_data(w.detach().to(sim0_));
  step();
  const at::Tensor master = masters.state_dict().at("masters").at("w").tensor();
  EXPECT_EQ(master.device(), sim0_);
  EXPECT_LT(master.cpu()[0].item<float>(), 0.9981F) << "both steps count";
  EXPECT_EQ(w.device(), sim0_);
}

// Autograd runs a device's backward in a thread of its own.
TEST_F(AmpSimTest, AnomaliesAreFoundInADevicesThread) {
  const at::Tensor w = at::zeros({2, 2}, at::TensorOptions(sim0_)).set_requires_grad(true);
  const AnomalyMode anomaly({{"block.3.weight", w}});
  const at::Tensor loss = at::linear(at::ones({2, 2}, at::TensorOptions(sim0_)), w).sqrt().sum();
  EXPECT_THAT(message_of<NonFiniteError>([&] { loss.backward(); }),
              AllOf(HasSubstr("aten::sqrt after module 'block.3'"), HasSubstr("infinite")));
}

// The backward, in the device's thread, under an open guard; a step while it is open.
TEST_F(AmpSimTest, ABackwardUnderAnOpenGuardUsesTheNewestWeights) {
  const at::Tensor w = at::ones({1, 2}, at::TensorOptions(sim0_)).set_requires_grad(true);
  const at::Tensor x = at::ones({1, 2}, at::TensorOptions(sim0_));
  optim::SGD sgd({{"w", w}}, {.lr = 1.0});
  const Autocast autocast(sim0_);
  for (int step = 0; step < 20; ++step) {
    sgd.zero_grad();
    const at::Tensor out = at::linear(x, w);
    ASSERT_EQ(out.item<float>(), 2.0F - 2.0F * static_cast<float>(step));
    out.sum().backward();
    sgd.step();
  }
}

// Each device's backwards run in one thread of autograd's, whoever asks for them.
TEST_F(AmpSimTest, FourThreadsTrainWithTheirNewestWeights) {
  const auto train = [](c10::Device device) {
    const at::Tensor w = at::zeros({1, 2}, at::TensorOptions(device)).set_requires_grad(true);
    const at::Tensor x = at::ones({1, 2}, at::TensorOptions(device));
    optim::SGD sgd({{"w", w}}, {.lr = 1.0});
    GradScaler scaler;
    for (int step = 0; step < 100; ++step) {
      sgd.zero_grad();
      std::optional<Autocast> autocast(std::in_place, device);
      const at::Tensor out = at::linear(x, w);
      ASSERT_EQ(out.item<float>(), -2.0F * static_cast<float>(step));
      if (step % 2 == 0) autocast.reset();
      scaler.scale(out.to(at::kFloat).sum()).backward();
      ASSERT_TRUE(scaler.step(sgd));
      scaler.update();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(train, i % 2 == 0 ? sim0_ : sim1_);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace bellows::amp
