// Whole trainings on a simulated device are the CPU's, bit for bit.
#include <filesystem>

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/optim/adam.h>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/safetensors.h"
#include "bellows/device/seed.h"
#include "bellows/device/sim.h"
#include "bellows/nn/from_torchscript.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"
#include "tests/conformance/workloads.h"

namespace bellows::conformance {
namespace {

constexpr int kSteps = 20;

struct Trace {
  std::vector<at::Tensor> losses;
  NamedTensors gradients;  // of the first step
  NamedTensors state;
};

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const nn::Model&)>;

std::unique_ptr<optim::Optimizer> adamw(const nn::Model& model) {
  return std::make_unique<optim::AdamW>(model.named_parameters(), optim::AdamWOptions{.lr = 1e-3});
}

std::unique_ptr<optim::Optimizer> sgd(const nn::Model& model) {
  return std::make_unique<optim::SGD>(
      model.named_parameters(),
      optim::SGDOptions{.lr = 0.01, .momentum = 0.9, .weight_decay = 5e-4});
}

Trace train(const std::string& name, c10::Device device, const MakeOptimizer& make) {
  const nn::Model model = make_model(name, 1);
  model.to(device);
  const auto optimizer = make(model);
  seed_everything(5);  // dropout
  Trace trace;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    const at::Tensor loss =
        at::cross_entropy_loss(model.forward(make_input(name, 10 + step).to(device)).tensor(),
                               make_target(50 + step).to(device));
    loss.backward();
    if (step == 0)
      for (const auto& [key, value] : model.named_parameters())
        trace.gradients.emplace_back(key, value.grad().cpu().clone());
    optimizer->step();
    trace.losses.push_back(loss.detach().cpu());
  }
  for (const auto& [key, value] : model.state_dict()) trace.state.emplace_back(key, value.cpu());
  return trace;
}

void expect_same(const NamedTensors& cpu, const NamedTensors& sim) {
  ASSERT_EQ(cpu.size(), sim.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_EQ(cpu[i].first, sim[i].first);
    EXPECT_TRUE(at::equal(cpu[i].second, sim[i].second))
        << cpu[i].first << " differs by "
        << (cpu[i].second.sub(sim[i].second)).abs().max().item<double>();
  }
}

class Training : public ::testing::TestWithParam<std::string> {
 protected:
  Training() { sim::enable({.devices = 2}); }

  static void expect_equal(const std::string& name, const MakeOptimizer& make) {
    const Trace cpu = train(name, c10::Device(c10::kCPU), make);
    const Trace sim = train(name, sim::device(1), make);
    for (int i = 0; i < kSteps; ++i)
      EXPECT_TRUE(at::equal(cpu.losses[i], sim.losses[i])) << "loss of step " << i;
    expect_same(cpu.gradients, sim.gradients);
    expect_same(cpu.state, sim.state);
  }
};

TEST_P(Training, TwentyStepsOfAdamWAreTheCpus) {
  expect_equal(GetParam(), adamw);
}
TEST_P(Training, TwentyStepsOfSgdAreTheCpus) {
  expect_equal(GetParam(), sgd);
}

TEST_P(Training, LibTorchsOptimizerWorksTheSame) {
  const auto run = [&](c10::Device device) {
    const nn::Model model = make_model(GetParam(), 1);
    model.to(device);
    std::vector<at::Tensor> parameters;
    for (const auto& [key, value] : model.named_parameters()) parameters.push_back(value);
    torch::optim::Adam optimizer(parameters, torch::optim::AdamOptions(1e-3));
    seed_everything(5);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      at::cross_entropy_loss(model.forward(make_input(GetParam(), 10 + step).to(device)).tensor(),
                             make_target(50 + step).to(device))
          .backward();
      optimizer.step();
    }
    NamedTensors state;
    for (const auto& [key, value] : model.state_dict()) state.emplace_back(key, value.cpu());
    return state;
  };
  expect_same(run(c10::Device(c10::kCPU)), run(sim::device(0)));
}

TEST_P(Training, DeterministicModeGivesTheCpusToo) {
  set_deterministic(true);
  expect_equal(GetParam(), adamw);
  set_deterministic(false);
}

TEST_P(Training, WeightsSavedFromADeviceAreThoseOfTheCpu) {
  const nn::Model cpu = make_model(GetParam(), 1), there = make_model(GetParam(), 1),
                  back = make_model(GetParam(), 2);
  there.to(sim::device(1));
  const auto file =
      std::filesystem::path(::testing::TempDir()) / ("weights-" + GetParam() + ".safetensors");
  checkpoint::write_safetensors(file, there.state_dict());
  back.load_state_dict(checkpoint::read_safetensors(file));
  expect_same(cpu.state_dict(), back.state_dict());
  const nn::Model again = make_model(GetParam(), 2);
  again.to(sim::device(0));
  again.load_state_dict(checkpoint::read_safetensors(file));
  NamedTensors state;
  for (const auto& [key, value] : again.state_dict()) state.emplace_back(key, value.cpu());
  expect_same(cpu.state_dict(), state);
}

// As torch.jit.script and torch.jit.trace write them: a trace calls _convolution.
TEST(TorchScript, AModuleTrainsOnADeviceAsOnTheCpu) {
  sim::enable({.devices = 2});
  const auto train = [](c10::Device device) {
    torch::jit::Module module("__torch__.Net");
    module.register_attribute("training", c10::BoolType::get(), true);
    at::manual_seed(3);
    module.register_parameter("scripted", at::randn({4, 1, 3, 3}).requires_grad_(), false);
    module.register_parameter("traced", at::randn({4, 4, 3, 3}).requires_grad_(), false);
    module.register_parameter("head", at::randn({10, 4 * 24 * 24}).mul(0.01).requires_grad_(),
                              false);
    module.define(R"(
      def forward(self, x):
          y = torch.relu(torch.conv2d(x, self.scripted))
          y = torch._convolution(y, self.traced, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True)
          y = torch.dropout(torch.relu_(y), 0.1, self.training)
          return torch.linear(torch.flatten(y, 1), self.head)
    )");
    const nn::Model model = nn::from_torchscript(module);
    model.to(device);
    optim::AdamW optimizer(model.named_parameters());
    seed_everything(5);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      at::cross_entropy_loss(model.forward(make_input("convnet", step).to(device)).tensor(),
                             make_target(step).to(device))
          .backward();
      optimizer.step();
    }
    NamedTensors state;
    for (const auto& [key, value] : model.state_dict()) state.emplace_back(key, value.cpu());
    return state;
  };
  expect_same(train(c10::Device(c10::kCPU)), train(sim::device(1)));
}

INSTANTIATE_TEST_SUITE_P(Models, Training, ::testing::ValuesIn(model_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace bellows::conformance
