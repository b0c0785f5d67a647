#include "bellows/nn/from_module.h"

#include <gmock/gmock.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "bellows/core/error.h"
#include "bellows/nn/convnet.h"
#include "bellows/nn/lstm.h"
#include "bellows/nn/mlp.h"
#include "bellows/nn/resnet.h"
#include "bellows/nn/transformer.h"

namespace bellows::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no ValueError";
}

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors) out.push_back(name);
  return out;
}

at::Tensor ones() {
  return at::ones({2});
}

struct SubtractImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& a, at::Tensor b) { return a - b; }
};
TORCH_MODULE(Subtract);

struct DefaultImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x, const std::optional<at::Tensor>& mask = {}) {
    return mask ? x * *mask : x;
  }
};
TORCH_MODULE(Default);

struct OverloadImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return x; }
  at::Tensor forward(at::Tensor x, at::Tensor y, at::Tensor z) { return x + y + z; }
};
TORCH_MODULE(Overload);

struct TreeNetImpl : torch::nn::Module {
  Tree forward(const Tree& input) { return input.at("x"); }
};
TORCH_MODULE(TreeNet);

struct ManyImpl : torch::nn::Module {
  using Pair = std::pair<at::Tensor, std::vector<at::Tensor>>;
  std::tuple<at::Tensor, Pair, std::map<std::string, at::Tensor>> forward(at::Tensor x) {
    return {x, {x + 1, {x + 2, x + 3}}, {{"key", x + 4}}};
  }
};
TORCH_MODULE(Many);

TEST(FromModuleTest, TensorIsTheOnlyArgumentAndAListIsSpread) {
  const Model model = from_module(Subtract());
  EXPECT_TRUE(at::equal(model.forward(Tree::List{ones() * 5, ones()}).tensor(), ones() * 4));
  const Model linear = from_module(torch::nn::Linear(2, 3));
  EXPECT_EQ(linear.forward(ones()).tensor().numel(), 3);
  EXPECT_EQ(linear.forward(Tree::List{ones()}).tensor().numel(), 3);
}

TEST(FromModuleTest, DefaultArgumentsMayBeLeftOut) {
  const Model model = from_module(Default());
  EXPECT_TRUE(at::equal(model.forward(ones()).tensor(), ones()));
  EXPECT_TRUE(at::equal(model.forward(Tree::List{ones(), ones() * 3}).tensor(), ones() * 3));
}

TEST(FromModuleTest, OverloadIsChosenByTheNumberOfArguments) {
  const Model model = from_module(Overload());
  EXPECT_TRUE(at::equal(model.forward(ones()).tensor(), ones()));
  EXPECT_TRUE(at::equal(model.forward(Tree::List{ones(), ones(), ones()}).tensor(), ones() * 3));
  EXPECT_THAT(message_of([&] {
                model.forward(Tree::List{ones(), ones()});
              }),
              HasSubstr("got 2 arguments, expected 1 or 3"));
}

TEST(FromModuleTest, SequentialsTemplateForwardWorks) {
  torch::nn::Sequential net(torch::nn::Linear(2, 4), torch::nn::Linear(4, 1));
  const Model model = from_module(net);
  EXPECT_TRUE(at::equal(model.forward(ones()).tensor(), net->forward(ones())));
  EXPECT_THAT(names_of(model.named_parameters()),
              ElementsAre("0.weight", "0.bias", "1.weight", "1.bias"));
}

TEST(FromModuleTest, ModuleThatTakesATreeGetsTheInputAsItIs) {
  const Model model = from_module(TreeNet());
  EXPECT_TRUE(at::equal(model.forward(Tree::Dict{{"x", ones()}}).tensor(), ones()));
}

TEST(FromModuleTest, NestedOutputsBecomeTrees) {
  const Tree out = from_module(Many()).forward(at::zeros({1}));
  EXPECT_EQ(out[0].tensor().item<float>(), 0);
  EXPECT_EQ(out[1][0].tensor().item<float>(), 1);
  EXPECT_EQ(out[1][1][1].tensor().item<float>(), 3);
  EXPECT_EQ(out[2].at("key").tensor().item<float>(), 4);
}

TEST(FromModuleTest, WrongInputsAreNamed) {
  const Model model = from_module(Subtract());
  EXPECT_THAT(message_of([&] { model.forward(ones()); }), HasSubstr("got 1 arguments, expected 2"));
  EXPECT_THAT(message_of([&] { model.forward(Tree::List{}); }),
              HasSubstr("got 0 arguments, expected 2"));
  EXPECT_THAT(message_of([&] {
                model.forward(Tree::List{ones(), "text"});
              }),
              HasSubstr("Argument 1 of forward: got string, expected a tensor"));
}

TEST(FromModuleTest, EmptyHolderIsRefused) {
  EXPECT_THAT(message_of([] { from_module(torch::nn::Linear(nullptr)); }),
              HasSubstr("empty module holder"));
  EXPECT_THAT(message_of([] { from_module(std::shared_ptr<SubtractImpl>()); }),
              HasSubstr("empty module holder"));
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    inner = register_module("inner", torch::nn::Linear(2, 2));
    again = register_module("again", inner);
    own = register_parameter("own", at::ones({2}));
    shared = register_parameter("shared", inner->weight);
    norm = register_module("norm", torch::nn::BatchNorm1d(2));
    absent = register_parameter("absent", at::Tensor(), false);
  }
  at::Tensor forward(at::Tensor x) { return norm(again(inner(x)) * own); }
  torch::nn::Linear inner = nullptr, again = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  at::Tensor own, shared, absent;
};
TORCH_MODULE(Tied);

TEST(FromModuleTest, NamesAreInPythonsOrderTiedOnceAndUndefinedNever) {
  const Model model = from_module(Tied());
  EXPECT_THAT(names_of(model.named_parameters()),
              ElementsAre("own", "shared", "inner.bias", "norm.weight", "norm.bias"));
  EXPECT_THAT(names_of(model.named_buffers()),
              ElementsAre("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"));
}

TEST(FromModuleTest, TrainAndEvalReachSubmodules) {
  Tied module;
  const Model model = from_module(module);
  model.eval();
  EXPECT_FALSE(module->norm->is_training());
  EXPECT_FALSE(model.is_training());
  model.train();
  EXPECT_TRUE(module->norm->is_training());
}

TEST(FromModuleTest, MoveToMetaReachesMembersAndGradients) {
  Tied module;
  const Model model = from_module(module);
  model.forward(at::randn({3, 2})).tensor().sum().backward();
  model.to(at::kMeta);
  EXPECT_TRUE(module->inner->weight.is_meta());
  EXPECT_TRUE(module->inner->weight.grad().is_meta());
  EXPECT_TRUE(module->norm->running_mean.is_meta());
}

struct CarriesImpl : torch::nn::Module {
  void to(c10::Device device, bool) override { moved_to = device; }
  at::Tensor forward(at::Tensor x) { return x; }
  std::optional<c10::Device> moved_to;
};
TORCH_MODULE(Carries);

TEST(FromModuleTest, MoveCallsTheModulesOwn) {
  Carries module;
  from_module(module).to(at::kCPU);
  ASSERT_TRUE(module->moved_to);
  EXPECT_TRUE(module->moved_to->is_cpu());
}

TEST(FromModuleTest, ModelSharesTheModule) {
  torch::nn::Linear linear(2, 1);
  const Model model = from_module(linear);
  const at::NoGradGuard no_grad;
  linear->weight.fill_(2);
  linear->bias.fill_(1);
  EXPECT_EQ(model.forward(ones()).tensor().item<float>(), 5);
}

// LibTorch's own clone(), as its data_parallel uses it.
template <class Holder>
void expect_clone_is_equal_and_independent(Holder module, at::IntArrayRef input_shape) {
  const at::NoGradGuard no_grad;
  using Impl = typename Holder::ContainedType;
  const auto copy = std::dynamic_pointer_cast<Impl>(module->clone());
  ASSERT_TRUE(copy);
  const at::Tensor input = at::randn(input_shape);
  const at::Tensor expected = module->forward(input);
  EXPECT_TRUE(at::equal(copy->forward(input), expected));
  for (at::Tensor& tensor : module->parameters()) tensor.zero_();
  EXPECT_TRUE(at::equal(copy->forward(input), expected));
  for (const at::Tensor& tensor : copy->parameters()) tensor.zero_();
  EXPECT_TRUE(at::equal(copy->forward(input), at::zeros_like(expected)));
}

TEST(BuiltinModuleTest, CloneIsEqualAndIndependent) {
  expect_clone_is_equal_and_independent(Mlp(), {2, 1, 28, 28});
  expect_clone_is_equal_and_independent(ConvNet(), {2, 1, 28, 28});
  expect_clone_is_equal_and_independent(ResNet18(), {2, 3, 32, 32});
  expect_clone_is_equal_and_independent(
      LstmClassifier(LstmClassifierOptions{.layers = 2, .bidirectional = true}), {2, 5, 28});
  expect_clone_is_equal_and_independent(
      TransformerClassifier(TransformerClassifierOptions{.layer = {.dropout = 0}}), {2, 5, 28});
}

}  // namespace
}  // namespace bellows::nn
