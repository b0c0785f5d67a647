#include "bellows/nn/model.h"

#include <gmock/gmock.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows::nn {
namespace {

using ::testing::HasSubstr;

at::Tensor parameter(at::IntArrayRef shape) {
  return at::ones(shape).requires_grad_();
}

Tree identity(const Tree& input) {
  return input;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no ValueError";
}

Model small_model() {
  return from_function(identity, {{"weight", parameter({2, 3})}, {"bias", parameter({2})}},
                       {{"count", at::zeros({}, at::kLong)}});
}

TEST(ModelTest, NullImplementationIsRefused) {
  EXPECT_THROW(Model(std::shared_ptr<Model::Interface>()), ValueError);
}

TEST(ModelTest, FunctionIsCalledWithTheInputAndGradientsReachItsParameters) {
  const at::Tensor weight = parameter({3});
  const Model model = from_function([weight](const Tree& x) { return Tree(x.tensor() * weight); },
                                    {{"weight", weight}});
  model.forward(at::full({3}, 2.0)).tensor().sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::full({3}, 2.0)));
}

TEST(ModelTest, FunctionModelStartsInTrainingModeAndFollowsTrainAndEval) {
  const Model model = small_model();
  EXPECT_TRUE(model.is_training());
  model.eval();
  EXPECT_FALSE(model.is_training());
  model.train();
  EXPECT_TRUE(model.is_training());
}

TEST(ModelTest, FromFunctionRefusesWhatCannotBeNamed) {
  EXPECT_THAT(message_of([] { from_function(nullptr, {}); }), HasSubstr("empty function"));
  EXPECT_THAT(message_of([] {
                from_function(identity, {{"a", at::Tensor()}});
              }),
              HasSubstr("parameter a is undefined"));
  EXPECT_THAT(message_of([] {
                from_function(identity, {{"", parameter({1})}});
              }),
              HasSubstr("without a name"));
  EXPECT_THAT(message_of([] {
                from_function(identity, {{"a", parameter({1})}}, {{"a", at::ones({1})}});
              }),
              HasSubstr("a is used twice"));
}

TEST(ModelTest, TiedTensorsAppearOnceUnderTheirFirstName) {
  const at::Tensor shared = parameter({2});
  const Model model =
      from_function(identity, {{"first", shared}, {"other", parameter({1})}, {"second", shared}});
  const NamedTensors parameters = model.named_parameters();
  ASSERT_EQ(parameters.size(), 2);
  EXPECT_EQ(parameters[0].first, "first");
  EXPECT_EQ(parameters[1].first, "other");
  EXPECT_EQ(model.parameter_count(), 3);
}

TEST(ModelTest, StateDictHoldsParametersThenBuffersDetachedAndShared) {
  const Model model = small_model();
  const NamedTensors state = model.state_dict();
  ASSERT_EQ(state.size(), 3);
  EXPECT_EQ(state[0].first, "weight");
  EXPECT_EQ(state[1].first, "bias");
  EXPECT_EQ(state[2].first, "count");
  EXPECT_FALSE(state[0].second.requires_grad());
  EXPECT_EQ(state[0].second.data_ptr(), model.named_parameters()[0].second.data_ptr());
}

TEST(ModelTest, LoadCopiesValuesAndKeepsParametersTrainableLeaves) {
  const Model model = small_model();
  const at::Tensor weight = model.named_parameters()[0].second;
  model.load_state_dict({{"count", at::full({}, 7, at::kLong)},
                         {"bias", at::full({2}, 4.0)},
                         {"weight", at::full({2, 3}, 3.0)}});
  EXPECT_TRUE(at::equal(weight, at::full({2, 3}, 3.0)));
  EXPECT_EQ(model.named_buffers()[0].second.item<int64_t>(), 7);
  EXPECT_TRUE(weight.is_leaf());
  EXPECT_TRUE(weight.requires_grad());
}

TEST(ModelTest, LoadListsEveryMisfitAndChangesNothing) {
  const Model model = from_function(identity, {{"a", parameter({2})},
                                               {"b", parameter({2, 3})},
                                               {"c", parameter({1})},
                                               {"d", parameter({4})},
                                               {"e", parameter({5})}});
  const std::string text = message_of([&] {
    model.load_state_dict({{"a", at::zeros({2})},
                           {"b", at::zeros({3, 2})},
                           {"c", at::zeros({1}, at::kComplexFloat)},
                           {"x", at::zeros({1})},
                           {"y", at::zeros({1})},
                           {"a", at::zeros({2})}});
  });
  EXPECT_EQ(
      text,
      "The state does not fit the model. Missing: d, e. Unexpected: x, y. Mismatched: b (got "
      "float32 [3, 2], expected float32 [2, 3]); c (got complex64 [1], expected float32 [1]). "
      "Named twice: a (a second time). Build the model with the options of the one that was "
      "saved.");
  EXPECT_TRUE(at::equal(model.named_parameters()[0].second, at::ones({2})));
}

TEST(ModelTest, LoadIntoTheMetaDeviceIsRefused) {
  const Model model = from_function(identity, {{"a", parameter({2})}});
  model.to(at::kMeta);
  EXPECT_THAT(message_of([&] {
                model.load_state_dict({{"a", at::zeros({2})}});
              }),
              HasSubstr("a (on the meta device, which holds no values)"));
}

TEST(ModelTest, MoveTakesGradientsAlongAndKeepsHandles) {
  const at::Tensor weight = parameter({2});
  const Model model = from_function([weight](const Tree& x) { return Tree(x.tensor() * weight); },
                                    {{"weight", weight}});
  model.forward(at::ones({2})).tensor().sum().backward();
  model.to(at::kMeta);
  EXPECT_TRUE(weight.is_meta());
  EXPECT_TRUE(weight.grad().is_meta());
  EXPECT_TRUE(weight.is_leaf());
  EXPECT_TRUE(weight.requires_grad());
  model.forward(at::ones({2}, at::kMeta)).tensor().sum().backward();
}

TEST(ModelTest, MoveToTheSameDeviceKeepsMemory) {
  const Model model = small_model();
  const void* before = model.named_parameters()[0].second.data_ptr();
  model.to(at::kCPU);
  EXPECT_EQ(model.named_parameters()[0].second.data_ptr(), before);
}

}  // namespace
}  // namespace bellows::nn
