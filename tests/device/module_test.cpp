#include "bellows/device/module.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/sgd.h>

#include "bellows/core/error.h"

namespace bellows {
namespace {

const c10::Device kCpu(c10::kCPU);
const c10::Device kMeta(c10::kMeta);

torch::nn::Sequential small_net() {
  return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                               torch::nn::Linear(4, 1));
}

void train_step(torch::nn::Sequential& net, torch::optim::SGD& optimizer, c10::ScalarType dtype) {
  net->forward(torch::ones({2, 3}, dtype).cumsum(0)).sum().backward();
  optimizer.step();
}

TEST(ModuleToTest, ParametersBuffersAndGradientsMove) {
  auto net = small_net();
  net->forward(torch::rand({2, 3})).sum().backward();
  to(*net, kMeta);
  for (const auto& item : net->named_parameters()) {
    EXPECT_TRUE(item.value().is_meta()) << item.key();
    EXPECT_TRUE(item.value().grad().is_meta()) << item.key();
    EXPECT_TRUE(item.value().requires_grad()) << item.key();
    EXPECT_TRUE(item.value().is_leaf()) << item.key();
  }
  for (const auto& item : net->named_buffers()) EXPECT_TRUE(item.value().is_meta()) << item.key();
  auto& first = net->at<torch::nn::LinearImpl>(0);
  EXPECT_TRUE(first.forward(torch::ones({2, 3}, kMeta)).is_meta()) << "its members moved too";
}

TEST(ModuleToTest, AModuleComesBackFromMetaReadyForTraining) {
  auto net = small_net();
  to(*net, kMeta);
  to(*net, kCpu);
  for (auto& parameter : net->parameters()) torch::nn::init::ones_(parameter);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  train_step(net, optimizer, torch::kFloat);
  EXPECT_TRUE(net->parameters()[0].grad().is_cpu());
}

TEST(ModuleToTest, TrainingGoesOnWhenTheTypeChangesAgainAndAgain) {
  auto net = small_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kDouble, torch::kFloat}) {
    to(*net, kCpu, dtype);
    train_step(net, optimizer, dtype);
    for (const auto& item : net->named_parameters()) {
      EXPECT_EQ(item.value().scalar_type(), dtype) << item.key();
      EXPECT_EQ(item.value().grad().scalar_type(), dtype) << item.key();
    }
  }
}

TEST(ModuleToTest, GradientsKeepTheirValues) {
  torch::nn::Linear fc(2, 1);
  fc->forward(torch::ones({3, 2})).sum().backward();
  to(*fc, kCpu, torch::kDouble);
  EXPECT_TRUE(fc->weight.grad().eq(3.0).all().item<bool>());
  EXPECT_EQ(fc->weight.grad().scalar_type(), torch::kDouble);
}

TEST(ModuleToTest, IntegerBuffersKeepTheirType) {
  torch::nn::BatchNorm1d bn(4);
  to(*bn, kCpu, torch::kDouble);
  EXPECT_EQ(bn->running_mean.scalar_type(), torch::kDouble);
  EXPECT_EQ(bn->num_batches_tracked.scalar_type(), torch::kLong);
}

TEST(ModuleToTest, TiedParametersStayTied) {
  torch::nn::Linear first(3, 3);
  torch::nn::Linear second(3, 3);
  second->weight = second->parameters()[0];
  auto net = torch::nn::Sequential(first);
  const torch::Tensor handle = first->weight;
  net->register_parameter("again", first->weight);
  to(*net, kMeta);
  EXPECT_TRUE(handle.is_meta());
  EXPECT_TRUE(handle.is_same(first->weight));
}

// A module that holds a tensor it has not registered and brings it itself.
struct WithOwn : torch::nn::Module {
  torch::Tensor own = torch::ones({2});
  using torch::nn::Module::to;
  void to(torch::Device device, bool non_blocking) override {
    torch::nn::Module::to(device, non_blocking);
    own = own.to(device, non_blocking);
  }
};

TEST(ModuleToTest, AModulesOwnToIsCalled) {
  WithOwn module;
  to(module, kMeta);
  EXPECT_TRUE(module.own.is_meta());
}

template <class Module>
void expect_moves(Module module) {
  to(*module, kMeta);
  for (const auto& item : module->named_parameters())
    EXPECT_TRUE(item.value().is_meta()) << item.key();
  for (const auto& item : module->named_buffers())
    EXPECT_TRUE(item.value().is_meta()) << item.key();
}

TEST(ModuleToTest, EveryKindOfLayerMovesAsAWhole) {
  expect_moves(torch::nn::Conv2d(3, 4, 3));
  expect_moves(torch::nn::ConvTranspose2d(3, 4, 3));
  expect_moves(torch::nn::BatchNorm2d(4));
  expect_moves(torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  expect_moves(torch::nn::GroupNorm(2, 4));
  expect_moves(torch::nn::Embedding(5, 3));
  expect_moves(torch::nn::LSTM(3, 4));
  expect_moves(torch::nn::GRU(3, 4));
  expect_moves(torch::nn::TransformerEncoderLayer(8, 2));
  expect_moves(torch::nn::Dropout());
}

}  // namespace
}  // namespace bellows
