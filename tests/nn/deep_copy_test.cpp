#include "bellows/nn/deep_copy.h"

#include <gmock/gmock.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/parameterdict.h>
#include <torch/nn/modules/container/parameterlist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "bellows/core/error.h"
#include "bellows/device/seed.h"
#include "bellows/nn/convnet.h"
#include "bellows/nn/from_module.h"
#include "bellows/nn/from_torchscript.h"
#include "bellows/nn/lstm.h"
#include "bellows/nn/mlp.h"
#include "bellows/nn/resnet.h"
#include "bellows/nn/transformer.h"
#include "tests/support/message_of.h"

namespace bellows::nn {
namespace {

using bellows::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace tnn = torch::nn;

/// All names, values equal, no memory in common, requires_grad equal, and no gradients in the copy.
void expect_deep(const NamedTensors& original, const NamedTensors& copy) {
  ASSERT_EQ(copy.size(), original.size());
  for (size_t i = 0; i < copy.size(); ++i) {
    const auto& [name, tensor] = original[i];
    EXPECT_EQ(copy[i].first, name);
    EXPECT_TRUE(at::equal(copy[i].second, tensor)) << name;
    EXPECT_EQ(copy[i].second.strides(), tensor.strides()) << name;
    EXPECT_EQ(copy[i].second.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_FALSE(copy[i].second.is_alias_of(tensor)) << name;
    EXPECT_EQ(copy[i].second.requires_grad(), tensor.requires_grad()) << name;
    EXPECT_TRUE(copy[i].second.is_leaf()) << name;
    EXPECT_FALSE(copy[i].second.grad().defined()) << name;
  }
}

void expect_deep(const Model& original, const Model& copy) {
  expect_deep(original.named_parameters(), copy.named_parameters());
  expect_deep(original.named_buffers(), copy.named_buffers());
  EXPECT_EQ(copy.ties(), original.ties());
  EXPECT_EQ(copy.is_training(), original.is_training());
}

at::Tensor output(const Model& model, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  return model.forward(input).tensor();
}

/// Equal outputs; training the copy's values leaves the original alone.
void expect_independent(const Model& original, const Model& copy, const at::Tensor& input) {
  const at::Tensor before = output(original, input);
  EXPECT_TRUE(at::equal(output(copy, input), before));
  copy.forward(input).tensor().sum().backward();
  for (const auto& [name, tensor] : original.named_parameters())
    EXPECT_FALSE(tensor.grad().defined()) << name;
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : copy.named_parameters()) tensor.add_(1);
  }
  EXPECT_TRUE(at::equal(output(original, input), before));
  EXPECT_FALSE(at::equal(output(copy, input), before));
}

TEST(DeepCopyTest, LinearKeepsItsTypeAndSharesNothing) {
  tnn::Linear linear(3, 2);
  linear->forward(at::ones({1, 3})).sum().backward();
  tnn::Linear copy = deep_copy(linear);
  expect_deep(from_module(linear), from_module(copy));
  linear->zero_grad();
  expect_independent(from_module(linear), from_module(copy), at::randn({4, 3}));
}

TEST(DeepCopyTest, SequentialKeepsNamesModesTypesAndFrozenParameters) {
  tnn::Sequential net({{"conv", tnn::Conv2d(2, 4, 3)},
                       {"norm", tnn::BatchNorm2d(4)},
                       {"drop", tnn::Dropout(tnn::DropoutOptions(0.3))}});
  net->to(at::kDouble);
  for (auto& tensor : net->parameters())
    if (tensor.dim() == 4) tensor.set_data(tensor.contiguous(at::MemoryFormat::ChannelsLast));
  net->named_parameters()["conv.bias"].requires_grad_(false);
  net->eval();
  net[2]->train();
  const tnn::Sequential copy = deep_copy(net);
  expect_deep(from_module(net), from_module(copy));
  EXPECT_FALSE(copy->is_training());
  EXPECT_FALSE(copy->named_children()["conv"]->is_training());
  EXPECT_TRUE(copy->named_children()["drop"]->is_training());
  EXPECT_EQ(copy->named_children()["drop"]->as<tnn::Dropout>()->options.p(), 0.3);
}

TEST(DeepCopyTest, EveryModelOfOursCanBeCopiedWithoutDrawing) {
  const auto check = [](const auto& module, const at::Tensor& input) {
    const Model model = from_module(module);
    model.eval();
    const Tree before = RandomState().state_dict();
    const Model copy = model.deep_copy();
    EXPECT_TRUE(
        at::equal(RandomState().state_dict().at("cpu").tensor(), before.at("cpu").tensor()));
    expect_deep(model, copy);
    expect_independent(model, copy, input);
  };
  check(Mlp(MlpOptions{.in_features = 4, .hidden = {3}}), at::randn({2, 4}));
  check(ConvNet(), at::randn({2, 1, 28, 28}));
  check(ResNet18(), at::randn({1, 3, 32, 32}));
  check(LstmClassifier(LstmClassifierOptions{.in_features = 4}), at::randn({2, 3, 4}));
  check(TransformerClassifier(), at::randn({2, 1, 28, 28}));
}

/// Ties an embedding to a layer the way LibTorch's users do: by the member, and by name.
struct TiedImpl : tnn::Cloneable<TiedImpl> {
  explicit TiedImpl(int64_t size) : size(size) { reset(); }
  void reset() override {
    embed = register_module("embed", tnn::Embedding(size, size));
    again = register_module("again", embed);
    head = register_module("head", tnn::Linear(tnn::LinearOptions(size, size).bias(false)));
    head->weight = embed->weight;
    named = register_parameter("named", embed->weight);
  }
  at::Tensor forward(const at::Tensor& input) { return head(again(input)) * scale; }
  int64_t size;
  double scale = 1;
  tnn::Embedding embed = nullptr, again = nullptr;
  tnn::Linear head = nullptr;
  at::Tensor named;
};
TORCH_MODULE(Tied);

TEST(DeepCopyTest, TiesAndPlainMembersOfAUsersModuleAreKept) {
  Tied net(3);
  net->scale = 2;
  Tied copy = deep_copy(net);
  EXPECT_EQ(copy->scale, 2);
  EXPECT_TRUE(copy->named.is_same(copy->embed->weight));
  EXPECT_TRUE(copy->head->weight.is_same(copy->embed->weight));
  EXPECT_EQ(copy->again.ptr(), copy->embed.ptr());
  EXPECT_FALSE(copy->named.is_alias_of(net->named));
  expect_deep(from_module(net), from_module(copy));
  expect_independent(from_module(net), from_module(copy), at::full({2}, 1, at::kLong));
}

struct PlainImpl : tnn::Module {
  explicit PlainImpl(int64_t size, double drop = 0.1) : fc(3, size), drop(drop) {
    register_module("fc", fc);
    register_module("drop", this->drop);
    offset = register_buffer("offset", at::randn({size}));
  }
  at::Tensor forward(const at::Tensor& input) { return drop(fc(input)) + offset; }
  tnn::Linear fc;
  tnn::Dropout drop;
  at::Tensor offset;
};
TORCH_MODULE(Plain);

TEST(DeepCopyTest, ModuleThatIsNotCloneableAsksForAFactory) {
  Plain net(2);
  EXPECT_THAT(message_of<ValueError>([&] { deep_copy(net); }),
              AllOf(HasSubstr("PlainImpl"), HasSubstr("deep_copy(module, factory)")));
  EXPECT_THAT(message_of<ValueError>([&] { from_module(net).deep_copy(); }), HasSubstr("factory"));
}

TEST(DeepCopyTest, FactoryMakesCopiesOfAnyModule) {
  Plain net(2);
  net->eval();
  net->fc->weight.requires_grad_(false);
  const Plain copy = deep_copy(net, [] { return Plain(2); });
  expect_deep(from_module(net), from_module(copy));
  expect_independent(from_module(net), from_module(copy), at::randn({4, 3}));
  const std::shared_ptr<PlainImpl> pointer =
      deep_copy(net.ptr(), [] { return std::make_shared<PlainImpl>(2); });
  expect_deep(from_module(net), from_module(pointer));
  PlainImpl on_the_stack(2);
  EXPECT_TRUE(
      at::equal(deep_copy(on_the_stack, [] { return Plain(2); })->offset, on_the_stack.offset));
}

TEST(DeepCopyTest, FactoryOfAnotherModuleIsRefused) {
  Plain net(2);
  EXPECT_THAT(message_of<ValueError>([&] { deep_copy(net, [] { return Plain(5); }); }),
              AllOf(HasSubstr("with the factory"), HasSubstr("out_features=5")));
  EXPECT_THAT(message_of<ValueError>([&] { deep_copy(net, [] { return Plain(2, 0.5); }); }),
              HasSubstr("p=0.5"));
  EXPECT_THAT(message_of<ValueError>([&] { deep_copy(net, [&] { return net; }); }),
              HasSubstr("shares"));
  EXPECT_THAT(message_of<ValueError>([&] { deep_copy(net, [] { return Plain(nullptr); }); }),
              HasSubstr("empty ModuleHolder"));
  EXPECT_THAT(
      message_of<ValueError>([&] { deep_copy(net, [] { return std::shared_ptr<PlainImpl>(); }); }),
      HasSubstr("gave nothing"));
  EXPECT_THAT(message_of<ValueError>([&] { deep_copy(std::shared_ptr<PlainImpl>()); }),
              HasSubstr("null pointer"));
}

/// Its reset() keeps, and changes, what the constructor made: a copy must not reach it.
struct KeepsImpl : tnn::Cloneable<KeepsImpl> {
  KeepsImpl() : fc(2, 2) { reset(); }
  void reset() override {
    register_module("fc", fc);
    const at::NoGradGuard no_grad;
    fc->weight.zero_();
  }
  at::Tensor forward(const at::Tensor& input) { return fc(input); }
  tnn::Linear fc;
};
TORCH_MODULE(Keeps);

TEST(DeepCopyTest, ResetThatChangesTheOriginalIsRefusedAndTheOriginalRestored) {
  Keeps net;
  {
    const at::NoGradGuard no_grad;
    net->fc->weight.fill_(3);
  }
  EXPECT_THAT(message_of<ValueError>([&] { deep_copy(net); }),
              AllOf(HasSubstr("KeepsImpl"), HasSubstr("changes the original")));
  EXPECT_TRUE(at::equal(net->fc->weight, at::full({2, 2}, 3.0)));
}

TEST(DeepCopyTest, LayerTiedByItsMemberStaysTied) {
  tnn::Sequential net(tnn::Linear(4, 4), tnn::Linear(4, 4));
  const auto layer = [](tnn::Sequential& all, size_t i) { return all[i]->as<tnn::Linear>(); };
  layer(net, 1)->weight = layer(net, 0)->weight;
  layer(net, 1)->bias = at::full({4}, 7.0);  // registered nowhere
  tnn::Sequential copy = deep_copy(net);
  EXPECT_TRUE(layer(copy, 1)->weight.is_same(layer(copy, 0)->weight));
  EXPECT_FALSE(layer(copy, 1)->weight.is_alias_of(layer(net, 0)->weight));
  EXPECT_FALSE(layer(copy, 1)->bias.is_alias_of(layer(net, 1)->bias));
  expect_deep(from_module(net), from_module(copy));
  expect_independent(from_module(net), from_module(copy), at::randn({2, 4}));
}

TEST(DeepCopyTest, LayerWithAComputedMemberIsRefused) {
  tnn::Linear linear(2, 2);
  linear->weight = linear->weight * 2;
  EXPECT_THAT(message_of<ValueError>([&] { deep_copy(linear); }),
              HasSubstr("the member weight of the module is computed from other tensors"));
}

TEST(DeepCopyTest, ContainersOfParametersAreCopied) {
  const tnn::ParameterList list(at::ones({3}).requires_grad_(), at::full({2}, 5.0));
  const tnn::ParameterList copy = deep_copy(list);
  expect_deep(list->named_parameters().pairs(), copy->named_parameters().pairs());
  tnn::ParameterDict dict;
  dict->insert("k", at::full({3}, 2.0));
  expect_deep(dict->named_parameters().pairs(), deep_copy(dict)->named_parameters().pairs());
  const tnn::ModuleList nested(list, tnn::Linear(2, 2), dict);
  expect_deep(nested->named_parameters().pairs(), deep_copy(nested)->named_parameters().pairs());
}

/// Its buffer is a row of its parameter.
struct ViewImpl : tnn::Cloneable<ViewImpl> {
  ViewImpl() { reset(); }
  void reset() override {
    weight = register_parameter("weight", at::randn({4, 3}));
    row = register_buffer("row", weight.detach()[1]);
  }
  at::Tensor weight, row;
};
TORCH_MODULE(View);

TEST(DeepCopyTest, BufferThatIsAViewOfAParameterStaysOne) {
  const View net;
  const View copy = deep_copy(net);
  expect_deep(state_dict(net), state_dict(copy));
  const at::NoGradGuard no_grad;
  copy->weight.fill_(9);
  EXPECT_TRUE(at::equal(copy->row, at::full({3}, 9.0)));
  EXPECT_FALSE(at::equal(net->row, copy->row));
}

/// Its constructor keeps handles that its reset() does not make anew.
struct StrayImpl : tnn::Cloneable<StrayImpl> {
  enum Kind { tensor, layer, mask_only };
  explicit StrayImpl(Kind kind) {
    reset();
    if (kind == tensor) alias = fc->weight;
    if (kind == layer) layers = {fc};
  }
  void reset() override { fc = register_module("fc", tnn::Linear(2, 2)); }
  tnn::Linear fc = nullptr;
  at::Tensor alias, mask = at::ones({2});
  std::vector<tnn::Linear> layers;
};
TORCH_MODULE(Stray);

TEST(DeepCopyTest, HandleToARegisteredTensorOrModuleOfTheOriginalIsRefused) {
  EXPECT_THAT(message_of<ValueError>([] { deep_copy(Stray(StrayImpl::tensor)); }),
              HasSubstr("it keeps a handle to the original's fc.weight"));
  EXPECT_THAT(message_of<ValueError>([] { deep_copy(Stray(StrayImpl::layer)); }),
              HasSubstr("it keeps a handle to the original's fc (torch::nn::LinearImpl)"));
}

TEST(DeepCopyTest, TensorThatIsRegisteredNowhereIsSharedUnlessAFactoryMakesIt) {
  const Stray net(StrayImpl::mask_only);
  EXPECT_TRUE(deep_copy(net)->mask.is_same(net->mask));  // as documented: it cannot be seen
  EXPECT_FALSE(
      deep_copy(net, [] { return Stray(StrayImpl::mask_only); })->mask.is_alias_of(net->mask));
}

TEST(DeepCopyTest, EmptyHolderIsRefused) {
  EXPECT_THAT(message_of<ValueError>([] { deep_copy(tnn::Linear(nullptr)); }),
              HasSubstr("expected a module"));
}

TEST(DeepCopyTest, CopyOnTheMetaDeviceStaysThere) {
  const Model model = from_module(Mlp(MlpOptions{.in_features = 4, .hidden = {}}));
  model.to(at::kMeta);
  EXPECT_TRUE(model.deep_copy().named_parameters()[0].second.is_meta());
}

TEST(DeepCopyTest, FunctionIsCopiedByItsFactory) {
  const auto make = [] {
    const at::Tensor weight = at::randn({3}).requires_grad_();
    return from_function([weight](const Tree& x) { return Tree(x.tensor() * weight); },
                         {{"weight", weight}, {"same", weight}});
  };
  const Model model = make();
  model.eval();
  EXPECT_THAT(message_of<ValueError>([&] { model.deep_copy(); }),
              HasSubstr("model.deep_copy(factory)"));
  const Model copy = model.deep_copy(make);
  expect_deep(model, copy);
  expect_independent(model, copy, at::randn({3}));
  EXPECT_THAT(message_of<ValueError>([&] { model.deep_copy([&] { return model; }); }),
              HasSubstr("shares weight"));
  EXPECT_THAT(message_of<ValueError>([&] {
                model.deep_copy([] {
                  return from_function([](const Tree& x) { return x; },
                                       {{"weight", at::ones({3})}, {"same", at::ones({3})}});
                });
              }),
              HasSubstr("its parameters are weight, same, those of the original weight"));
}

torch::jit::Module script() {
  const auto empty = [](const char* name) {
    torch::jit::Module module(name);
    module.register_attribute("training", c10::BoolType::get(), true);
    return module;
  };
  torch::jit::Module layer = empty("__torch__.Layer");
  const at::Tensor weight = at::randn({2, 2}).requires_grad_();
  layer.register_parameter("weight", weight, false);
  layer.register_buffer("offset", at::ones({2}));
  layer.define("def forward(self, x):\n  return torch.matmul(x, self.weight) + self.offset\n");
  torch::jit::Module net = empty("__torch__.Net");
  net.register_parameter("frozen", at::ones({2}), false);
  net.register_parameter("tied", weight, false);
  net.register_attribute("scales", c10::ListType::create(c10::TensorType::get()),
                         c10::List<at::Tensor>({at::ones({2})}));
  net.register_module("a", layer);
  net.register_module("b", layer);
  net.define(
      "def forward(self, x):\n"
      "  return self.b.forward(self.a.forward(x)) * self.frozen * self.scales[0]\n");
  return net;
}

TEST(DeepCopyTest, TorchScriptSharesNeitherTensorsNorAttributesNorModules) {
  const torch::jit::Module net = script();
  const torch::jit::Module copy = deep_copy(net);
  expect_deep(from_torchscript(net), from_torchscript(copy));
  EXPECT_EQ(copy.attr("a").toObject(), copy.attr("b").toObject());
  EXPECT_NE(copy.attr("a").toObject(), net.attr("a").toObject());
  EXPECT_FALSE(
      copy.attr("scales").toTensorVector()[0].is_alias_of(net.attr("scales").toTensorVector()[0]));
  expect_independent(from_torchscript(net), from_torchscript(copy), at::randn({3, 2}));
}

TEST(DeepCopyTest, TorchScriptModelKeepsItsModeAndTies) {
  const Model model = from_torchscript(script());
  model.eval();
  const Model copy = model.deep_copy();
  expect_deep(model, copy);
  copy.train();
  EXPECT_FALSE(model.is_training());
  expect_independent(model, copy, at::randn({3, 2}));
}

}  // namespace
}  // namespace bellows::nn
