// Laws that hold for every registered model.
#include <gmock/gmock.h>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "bellows/nn/registry.h"

namespace bellows::nn {
namespace {

struct Kind {
  std::string name;
  std::vector<int64_t> input;
  int64_t classes;
  int64_t parameters;  // as Python counts those of the same model
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

const Kind kKinds[] = {{"mlp", {2, 1, 28, 28}, 10, 101770},
                       {"convnet", {2, 1, 28, 28}, 10, 104426},
                       {"resnet18", {2, 3, 64, 64}, 1000, 11689512},
                       {"lstm", {2, 1, 28, 28}, 10, 82186},
                       {"transformer", {2, 1, 28, 28}, 10, 73546}};

class BuiltinModelTest : public ::testing::TestWithParam<Kind> {
 protected:
  Model make(uint64_t seed) const {
    at::manual_seed(seed);
    Options options;
    return builtin_models().make(GetParam().name, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Every, BuiltinModelTest, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param.name; });

TEST(BuiltinModelsTest, EveryRegisteredModelIsTestedHere) {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.push_back(kind.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(builtin_models().names()));
}

TEST_P(BuiltinModelTest, GivesOneRowOfClassesForEachSampleAndLearnsInEveryParameter) {
  const Model model = make(0);
  const at::Tensor output = model.forward(at::randn(GetParam().input)).tensor();
  EXPECT_EQ(output.sizes(), (at::IntArrayRef{GetParam().input[0], GetParam().classes}));
  output.pow(2).sum().backward();
  for (const auto& [name, tensor] : model.named_parameters())
    EXPECT_TRUE(tensor.grad().defined()) << name;
  EXPECT_EQ(model.parameter_count(), GetParam().parameters);
}

TEST_P(BuiltinModelTest, SeedDecidesTheWeights) {
  const NamedTensors first = make(1).state_dict();
  const NamedTensors same = make(1).state_dict();
  const NamedTensors other = make(2).state_dict();
  for (size_t i = 0; i < first.size(); ++i)
    EXPECT_TRUE(at::equal(first[i].second, same[i].second)) << first[i].first;
  EXPECT_FALSE(at::equal(first[0].second, other[0].second));
}

TEST_P(BuiltinModelTest, MoveToMetaLeavesNoParameterOrBufferBehind) {
  const Model model = make(0);
  const NamedTensors before = model.state_dict();
  model.to(at::kMeta);
  const NamedTensors after = model.state_dict();
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].first, before[i].first);
    EXPECT_TRUE(after[i].second.is_meta()) << after[i].first;
  }
}

// A tensor outside of the registry would keep its own values.
TEST_P(BuiltinModelTest, StateDictHoldsAllThatDecidesTheOutput) {
  const Model model = make(1), other = make(2);
  const at::NoGradGuard no_grad;
  const at::Tensor input = at::randn(GetParam().input);
  model.forward(input);  // moves the running statistics
  other.load_state_dict(model.state_dict());
  at::manual_seed(3);  // for dropout
  const at::Tensor expected = model.forward(input).tensor();
  at::manual_seed(3);
  EXPECT_TRUE(at::equal(other.forward(input).tensor(), expected));
  model.eval();
  other.eval();
  EXPECT_TRUE(at::equal(model.forward(input).tensor(), other.forward(input).tensor()));
}

TEST(BuiltinModelsTest, ChannelsLastChangesStridesOnly) {
  for (const std::string name : {"convnet", "resnet18"}) {
    Options plain, last;
    plain.set("channels_last", false);
    last.set("channels_last", true);
    at::manual_seed(3);
    const Model a = builtin_models().make(name, plain);
    at::manual_seed(3);
    const Model b = builtin_models().make(name, last);
    const NamedTensors left = a.named_parameters(), right = b.named_parameters();
    for (size_t i = 0; i < left.size(); ++i)
      EXPECT_TRUE(at::equal(left[i].second, right[i].second)) << left[i].first;
    EXPECT_EQ(right[0].second.stride(1), 1) << name;
    const at::Tensor input = at::randn({2, name == "convnet" ? 1 : 3, 64, 64});
    const at::Tensor one = a.forward(input).tensor(), two = b.forward(input).tensor();
    EXPECT_TRUE(at::allclose(one, two, 1e-4, 1e-4)) << name;
  }
}

}  // namespace
}  // namespace bellows::nn
