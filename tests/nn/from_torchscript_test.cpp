#include "bellows/nn/from_torchscript.h"

#include <fstream>
#include <gmock/gmock.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include "bellows/core/error.h"

namespace bellows::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::jit::Module;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

Module empty_module(const std::string& name) {
  Module module(name);
  module.register_attribute("training", c10::BoolType::get(), true);
  return module;
}

Module scripted(const std::string& code) {
  Module module = empty_module("__torch__.Net");
  module.define(code);
  return module;
}

at::Tensor parameter(at::IntArrayRef shape) {
  return at::ones(shape).requires_grad_();
}

// As Python's script of a net with an own parameter, a layer with dropout, and a tied weight.
Module nested() {
  Module layer = empty_module("__torch__.Layer");
  const at::Tensor weight = parameter({2, 2});
  layer.register_parameter("weight", weight, false);
  layer.register_buffer("offset", at::ones({2}));
  layer.define(R"(
    def forward(self, x):
      return torch.dropout(torch.matmul(x, self.weight) + self.offset, 0.5, self.training)
  )");
  Module net = empty_module("__torch__.Net");
  net.register_parameter("scale", parameter({2}), false);
  net.register_parameter("tied", weight, false);
  net.register_module("layer", layer);
  net.define(R"(
    def forward(self, x):
      return self.layer.forward(x) * self.scale
  )");
  return net;
}

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors) out.push_back(name);
  return out;
}

TEST(FromTorchScriptTest, NestedParametersAndBuffersAreFoundByNameTiedOnce) {
  const Model model = from_torchscript(nested());
  EXPECT_THAT(names_of(model.named_parameters()), ElementsAre("scale", "tied"));
  EXPECT_THAT(names_of(model.named_buffers()), ElementsAre("layer.offset"));
}

TEST(FromTorchScriptTest, TrainAndEvalSwitchDropoutInside) {
  const Model model = from_torchscript(nested());
  const at::NoGradGuard no_grad;
  const auto zeros_in_output = [&] {
    return (model.forward(at::ones({100, 2})).tensor() == 0).sum().item<int64_t>();
  };
  EXPECT_TRUE(model.is_training());
  EXPECT_GT(zeros_in_output(), 0);
  model.eval();
  EXPECT_FALSE(model.is_training());
  EXPECT_EQ(zeros_in_output(), 0);
}

TEST(FromTorchScriptTest, StepsAgainstTheGradientLowerTheLoss) {
  const Model model = from_torchscript(nested());
  model.eval();
  const at::Tensor input = at::randn({16, 2});
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    const at::Tensor loss = model.forward(input).tensor().pow(2).mean();
    last = loss.item<double>();
    if (step == 0) first = last;
    loss.backward();
    const at::NoGradGuard no_grad;
    for (auto& [name, tensor] : model.named_parameters()) {
      tensor.sub_(tensor.grad(), 0.05);
      tensor.mutable_grad() = at::Tensor();
    }
  }
  EXPECT_LT(last, first / 2);
}

TEST(FromTorchScriptTest, MoveToMetaReachesParametersGradientsAndBuffers) {
  const Model model = from_torchscript(nested());
  model.eval();
  model.forward(at::ones({1, 2})).tensor().sum().backward();
  model.to(at::kMeta);
  for (const auto& [name, tensor] : model.named_parameters()) {
    EXPECT_TRUE(tensor.is_meta()) << name;
    EXPECT_TRUE(tensor.grad().is_meta()) << name;
  }
  EXPECT_TRUE(model.named_buffers()[0].second.is_meta());
}

TEST(FromTorchScriptTest, ListIsSpreadAndDefaultsMayBeLeftOut) {
  const Model model = from_torchscript(scripted(R"(
    def forward(self, x, y, scale: float = 2.0):
      return (x - y) * scale
  )"));
  const at::Tensor one = at::ones({1});
  EXPECT_EQ(model.forward(Tree::List{one * 3, one}).tensor().item<float>(), 4);
  EXPECT_EQ(model.forward(Tree::List{one * 3, one, 5}).tensor().item<float>(), 10);
  EXPECT_THAT(message_of([&] { model.forward(one); }),
              HasSubstr("got 1 arguments, expected 2 to 3"));
  EXPECT_THAT(message_of([&] {
                model.forward(Tree::List{one, one, 5, 6});
              }),
              HasSubstr("got 4 arguments, expected 2 to 3"));
}

TEST(FromTorchScriptTest, ValuesTakeTheTypesThatForwardDeclares) {
  const Model model = from_torchscript(scripted(R"(
    def forward(self, pair: Tuple[Tensor, int], items: List[Tensor], named: Dict[str, Tensor],
                mask: Optional[Tensor], word: str, flag: bool):
      return pair[0] * pair[1], items, named, mask, word, flag, 1.5
  )"));
  const at::Tensor one = at::ones({1});
  const Tree out = model.forward(Tree::List{Tree::List{one, 3}, Tree::List{one, one * 2},
                                            Tree::Dict{{"a", one * 4}}, Tree(), "hello", true});
  EXPECT_EQ(out[0].tensor().item<float>(), 3);
  EXPECT_EQ(out[1][1].tensor().item<float>(), 2);
  EXPECT_EQ(out[2].at("a").tensor().item<float>(), 4);
  EXPECT_TRUE(out[3].empty());
  EXPECT_EQ(out[4].string(), "hello");
  EXPECT_TRUE(out[5].boolean());
  EXPECT_EQ(out[6].number(), 1.5);
}

TEST(FromTorchScriptTest, ListForAForwardThatTakesOneListIsMeantWhole) {
  const Model model = from_torchscript(scripted(R"(
    def forward(self, items: List[Tensor]):
      return items[0] + items[1]
  )"));
  EXPECT_EQ(model.forward(Tree::List{at::ones({1}), at::ones({1})}).tensor().item<float>(), 2);
}

TEST(FromTorchScriptTest, WrongValueNamesTheArgumentAndTheType) {
  const Model model = from_torchscript(scripted(R"(
    def forward(self, x, sizes: List[int]):
      return x
  )"));
  EXPECT_EQ(message_of([&] {
              model.forward(Tree::List{"text", Tree::List{1}});
            }),
            "Argument 0 (x) of forward: got a string, expected Tensor.");
  EXPECT_EQ(message_of([&] {
              model.forward(Tree::List{at::ones({1}), Tree::List{1, 2.5}});
            }),
            "Argument 1 (sizes) of forward[1]: got a double, expected int.");
}

TEST(FromTorchScriptTest, ModuleWithoutForwardIsRefused) {
  EXPECT_THAT(message_of([] { from_torchscript(empty_module("__torch__.Net")); }),
              HasSubstr("no method forward"));
}

class LoadTorchScriptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(::testing::TempDir()) /
            ("bellows_torchscript_" + std::to_string(::getpid()) + ".pt");
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::filesystem::path path_;
};

TEST_F(LoadTorchScriptTest, SavedModuleGivesTheSameNamesAndOutput) {
  const Module module = nested();
  module.save(path_.string());
  const Model before = from_torchscript(module), after = load_torchscript(path_);
  before.eval();
  after.eval();
  EXPECT_EQ(names_of(after.named_parameters()), names_of(before.named_parameters()));
  const at::Tensor input = at::randn({4, 2});
  EXPECT_TRUE(at::equal(after.forward(input).tensor(), before.forward(input).tensor()));
}

TEST_F(LoadTorchScriptTest, ConstantsOfTheCodeStayOnTheCpu) {
  Module module = empty_module("__torch__.Net");
  module.register_parameter("weight", parameter({2}), false);
  module.define(R"(
    def forward(self, x):
      return torch.tensor([1.0, 2.0], device="cpu")
  )");
  module.save(path_.string());
  const Model model = load_torchscript(path_);
  model.to(at::kMeta);
  EXPECT_TRUE(model.forward(at::ones({2})).tensor().is_cpu());
}

TEST_F(LoadTorchScriptTest, AbsentFileIsNamed) {
  EXPECT_THROW(load_torchscript(path_), FileError);
  EXPECT_THAT(message_of([&] { load_torchscript(path_); }), HasSubstr(path_.string()));
  EXPECT_THROW(load_torchscript(::testing::TempDir()), FileError);
}

TEST_F(LoadTorchScriptTest, OtherFileIsRefusedWithoutABacktrace) {
  std::ofstream(path_) << "not an archive";
  EXPECT_THROW(load_torchscript(path_), CorruptFileError);
  const std::string text = message_of([&] { load_torchscript(path_); });
  EXPECT_THAT(text, HasSubstr("torch.jit.save"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("frame #")));
}

}  // namespace
}  // namespace bellows::nn
