#include "bellows/nn/state.h"

#include <gmock/gmock.h>
#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/nn/model.h"
#include "bellows/optim/sgd.h"
#include "tests/support/message_of.h"

namespace bellows::nn {
namespace {

using bellows::testing::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

at::Tensor parameter(at::IntArrayRef shape) {
  return at::ones(shape).requires_grad_();
}

at::Tensor filled(at::IntArrayRef shape, double value, at::ScalarType type = at::kFloat) {
  return at::full(shape, value, type);
}

Tree identity(const Tree& input) {
  return input;
}

Model model_of(NamedTensors parameters, NamedTensors buffers = {}) {
  return from_function(identity, std::move(parameters), std::move(buffers));
}

double first_value(const Model& model, const std::string& name) {
  for (const auto& [own, tensor] : model.state_dict(Names::all))
    if (own == name) return tensor.flatten()[0].item<double>();
  throw ValueError("no tensor " + name);
}

TEST(LoadStateTest, PartialLoadReportsWhatItLeavesOut) {
  const Model model = model_of({{"a", parameter({2})}, {"b", parameter({2})}});
  const auto report =
      model.load_state_dict({{"b", filled({2}, 5)}, {"c", filled({1}, 6)}}, {.strict = false});
  EXPECT_THAT(report.missing_keys, ElementsAre("a"));
  EXPECT_THAT(report.unexpected_keys, ElementsAre("c"));
  EXPECT_THAT(report.mismatched_keys, IsEmpty());
  EXPECT_EQ(first_value(model, "a"), 1);
  EXPECT_EQ(first_value(model, "b"), 5);
}

TEST(LoadStateTest, PartialLoadStillRefusesAnotherShapeUnlessAsked) {
  const Model model = model_of({{"a", parameter({2})}, {"b", parameter({2})}});
  const NamedTensors state{{"a", filled({2}, 5)}, {"b", filled({3}, 5)}};
  EXPECT_THAT(message_of<ValueError>([&] { model.load_state_dict(state, {.strict = false}); }),
              AllOf(HasSubstr("Mismatched: b (got float32 [3], expected float32 [2])"),
                    ::testing::Not(HasSubstr("Missing"))));
  EXPECT_EQ(first_value(model, "a"), 1);
  const auto report = model.load_state_dict(state, {.ignore_mismatched = true});
  EXPECT_THAT(report.mismatched_keys, ElementsAre("b"));
  EXPECT_THAT(report.missing_keys, IsEmpty());
  EXPECT_EQ(first_value(model, "a"), 5);
  EXPECT_EQ(first_value(model, "b"), 1);
}

TEST(LoadStateTest, PartialLoadOfNothingAtAllIsLogged) {
  const Model model = model_of({{"a", parameter({2})}});
  ::testing::internal::CaptureStderr();
  model.load_state_dict({{"module.a", filled({2}, 5)}}, {.strict = false});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("none of the state's 1 entries was loaded. The state's names begin"),
                    HasSubstr("strip_prefix")));
}

TEST(LoadStateTest, PrefixesComeOffAndOn) {
  const Model model = model_of({{"net.a", parameter({2})}});
  model.load_state_dict({{"net.a", filled({2}, 2)}}, {.strip_prefix = "module."});
  EXPECT_EQ(first_value(model, "net.a"), 2);
  model.load_state_dict({{"module.net.a", filled({2}, 3)}}, {.strip_prefix = "module."});
  EXPECT_EQ(first_value(model, "net.a"), 3);
  model.load_state_dict({{"module.a", filled({2}, 4)}},
                        {.strip_prefix = "module.", .add_prefix = "net."});
  EXPECT_EQ(first_value(model, "net.a"), 4);
}

TEST(LoadStateTest, RenamesAreAppliedInOrder) {
  const Model model = model_of({{"0.weight", parameter({2})}, {"head.weight", parameter({2})}});
  model.load_state_dict(
      {{"0.0.weight", filled({2}, 2)}, {"model.fc.weight", filled({2}, 3)}},
      {.rename = {{R"(^(\d+)\.(\d+)\.)", "$2."}, {"^model\\.", ""}, {"^fc", "head"}}});
  EXPECT_EQ(first_value(model, "0.weight"), 2);
  EXPECT_EQ(first_value(model, "head.weight"), 3);
}

TEST(LoadStateTest, NamesThatCollideAfterRenamingAreRefusedWithBoth) {
  const Model model = model_of({{"a", parameter({2})}});
  const std::string text = message_of<ValueError>([&] {
    model.load_state_dict({{"x.a", filled({2}, 2)}, {"y.a", filled({2}, 3)}},
                          {.strict = false, .rename = {{"^.\\.", ""}}});
  });
  EXPECT_THAT(text, HasSubstr("Named twice: x.a and y.a (both become a)"));
  EXPECT_EQ(first_value(model, "a"), 1);
}

TEST(LoadStateTest, BadPatternAndEndlessNameAreRefused) {
  const Model model = model_of({{"a", parameter({2})}});
  EXPECT_THAT(message_of<ValueError>([&] {
                model.load_state_dict({}, {.rename = {{"(", ""}}});
              }),
              HasSubstr("'(' is not a regular expression"));
  EXPECT_THAT(message_of<ValueError>([&] {
                model.load_state_dict({{std::string(1000000, 'a'), at::ones({1})}},
                                      {.rename = {{"(a|b)*", ""}}});
              }),
              HasSubstr("got a name of 1000000 characters, expected at most 4096"));
}

TEST(LoadStateTest, EverythingWrongIsInOneErrorWithTheNamesItCameFrom) {
  const Model model = model_of(
      {{"a", parameter({2})}, {"b", parameter({2})}, {"c", parameter({2})}, {"d", parameter({2})}});
  EXPECT_EQ(
      message_of<ValueError>([&] {
        model.load_state_dict({{"m.a", filled({3}, 1)},
                               {"m.x", filled({1}, 1)},
                               {"m.c", filled({2}, 1)},
                               {"c", filled({2}, 1)}},
                              {.strip_prefix = "m."});
      }),
      "The state does not fit the model. Missing: b, d. Unexpected: x (from m.x). Mismatched: "
      "a (from m.a) (got float32 [3], expected float32 [2]). Named twice: m.c and c (both "
      "become c). Build the model with the options of the one that was saved.");
}

TEST(LoadStateTest, ForgottenPrefixIsNamed) {
  const Model model = model_of({{"a.w", parameter({2})}, {"b", parameter({2})}});
  EXPECT_THAT(message_of<ValueError>([&] {
                model.load_state_dict({{"module.a.w", at::ones({2})}, {"module.b", at::ones({2})}});
              }),
              HasSubstr("begin with 'module.', the model's do not: load with strip_prefix."));
  const Model wrapped = model_of({{"net.a", parameter({2})}, {"net.b", parameter({2})}});
  EXPECT_THAT(message_of<ValueError>([&] {
                wrapped.load_state_dict({{"a", at::ones({2})}, {"b", at::ones({2})}});
              }),
              HasSubstr("begin with 'net.', the state's do not: load with add_prefix."));
}

TEST(LoadStateTest, TypesAreConvertedAsPythonsCopyDoes) {
  const Model model = model_of({{"float", parameter({2})}}, {{"count", at::zeros({}, at::kLong)},
                                                             {"mask", at::zeros({2}, at::kBool)}});
  for (const at::ScalarType type : {at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kByte}) {
    model.load_state_dict({{"float", filled({2}, 3, type)},
                           {"count", filled({}, 7, type)},
                           {"mask", filled({2}, 1, type)}});
    EXPECT_EQ(first_value(model, "float"), 3) << type;
    EXPECT_EQ(first_value(model, "count"), 7) << type;
    EXPECT_EQ(model.named_buffers()[0].second.scalar_type(), at::kLong);
  }
}

TEST(LoadStateTest, TypesThatWouldLoseValuesAreMismatched) {
  const Model model = model_of({{"float", parameter({2})}}, {{"count", at::zeros({}, at::kLong)}});
  EXPECT_THAT(message_of<ValueError>([&] {
                model.load_state_dict(
                    {{"float", filled({2}, 3, at::kComplexFloat)}, {"count", filled({}, 1.5)}});
              }),
              AllOf(HasSubstr("float (got complex64 [2], expected float32 [2])"),
                    HasSubstr("count (got float32 [] with fractions, expected int64 [])")));
}

TEST(LoadStateTest, NumberTooLargeForAnIntegerIsNotCalledAFraction) {
  const Model model = model_of({{"w", parameter({1})}}, {{"count", at::zeros({2}, at::kInt)}});
  for (const double value :
       {1e20, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(message_of<ValueError>([&] {
                  model.load_state_dict({{"w", at::ones({1})}, {"count", filled({2}, value)}});
                }),
                HasSubstr("count (got float32 [2] with values that int32 cannot hold, expected "
                          "int32 [2])"))
        << value;
  }
  EXPECT_EQ(first_value(model, "count"), 0);
}

TEST(LoadStateTest, TiedTensorIsLoadedUnderAnyOrAllOfItsNames) {
  const at::Tensor shared = parameter({2});
  const Model model = model_of({{"embed", shared}, {"other", parameter({1})}, {"head", shared}});
  EXPECT_THAT(model.ties(), ElementsAre(std::pair<std::string, std::string>("head", "embed")));
  const auto load = [&](NamedTensors state) {
    state.emplace_back("other", at::ones({1}));
    model.load_state_dict(state);
    EXPECT_EQ(model.named_parameters()[0].second.unsafeGetTensorImpl(),
              shared.unsafeGetTensorImpl());
    return first_value(model, "head");
  };
  EXPECT_EQ(load({{"embed", filled({2}, 2)}}), 2);
  EXPECT_EQ(load({{"head", filled({2}, 3)}}), 3);
  EXPECT_EQ(load({{"head", filled({2}, 4)}, {"embed", filled({2}, 4, at::kDouble)}}), 4);
  EXPECT_EQ(load(model_of({{"embed", shared}, {"head", shared}}).state_dict(Names::all)), 4);
}

TEST(LoadStateTest, TiedTensorWithTwoValuesIsRefusedWithBothNames) {
  const at::Tensor shared = parameter({2});
  const Model model = model_of({{"embed", shared}, {"head", shared}});
  EXPECT_THAT(
      message_of<ValueError>([&] {
        model.load_state_dict({{"embed", filled({2}, 2)}, {"head", filled({2}, 3)}});
      }),
      HasSubstr("One tensor in the model, but different values in the state: embed and head"));
  EXPECT_EQ(first_value(model, "embed"), 1);
}

TEST(LoadStateTest, StateHasTiesOnceOrUnderAllNames) {
  const at::Tensor shared = parameter({2});
  const Model model = model_of({{"embed", shared}, {"head", shared}});
  EXPECT_EQ(model.state_dict().size(), 1);
  const NamedTensors all = model.state_dict(Names::all);
  ASSERT_EQ(all.size(), 2);
  EXPECT_EQ(all[1].first, "head");
  EXPECT_TRUE(all[1].second.is_alias_of(shared));
}

TEST(LoadStateTest, OwnStateUnderExchangedNamesIsExchanged) {
  const Model model = model_of({{"a", parameter({2})}, {"b", parameter({2})}});
  model.load_state_dict({{"a", filled({2}, 1)}, {"b", filled({2}, 2)}});
  model.load_state_dict(model.state_dict(), {.rename = {{"^a$", "x"}, {"^b$", "a"}, {"^x$", "b"}}});
  EXPECT_EQ(first_value(model, "a"), 2);
  EXPECT_EQ(first_value(model, "b"), 1);
}

TEST(LoadStateTest, LoadingTwoHundredTimesKeepsMemoryGradientsAndTheOptimizersHandles) {
  const at::Tensor weight = parameter({3}), frozen = at::ones({2});
  const Model model = model_of({{"weight", weight}, {"frozen", frozen}});
  optim::SGD optimizer({{"weight", weight}}, {.lr = 1});
  weight.mutable_grad() = at::ones({3});
  const void* memory = weight.data_ptr();
  const auto references = weight.getIntrusivePtr().use_count();
  for (int i = 0; i < 200; ++i)
    model.load_state_dict({{"weight", filled({3}, 8, at::kDouble)}, {"frozen", filled({2}, 9)}});
  EXPECT_EQ(weight.data_ptr(), memory);
  EXPECT_EQ(weight.getIntrusivePtr().use_count(), references);
  EXPECT_TRUE(weight.requires_grad() && weight.is_leaf());
  EXPECT_FALSE(frozen.requires_grad());
  EXPECT_TRUE(at::equal(weight.grad(), at::ones({3})));
  optimizer.step();
  EXPECT_TRUE(at::equal(weight, filled({3}, 7)));
}

TEST(LoadStateTest, CheckReportsAndChangesNothing) {
  const Model model = model_of({{"a", parameter({2})}});
  const NamedTensors state{{"a", filled({2}, 5)}, {"x", filled({2}, 5)}};
  EXPECT_THAT(message_of<ValueError>([&] { model.check_state_dict(state); }),
              HasSubstr("Unexpected: x"));
  EXPECT_THAT(model.check_state_dict(state, {.strict = false}).unexpected_keys, ElementsAre("x"));
  EXPECT_EQ(first_value(model, "a"), 1);
}

TEST(LoadStateTest, StateFromBeforeTheCounterOfBatchNormalisationsLoads) {
  const torch::nn::Sequential net({{"norm", torch::nn::BatchNorm1d(2)}});
  const at::Tensor counter = net->named_buffers()["norm.num_batches_tracked"];
  counter.fill_(7);
  const NamedTensors old{{"norm.weight", filled({2}, 2)},
                         {"norm.bias", filled({2}, 3)},
                         {"norm.running_mean", filled({2}, 4)},
                         {"norm.running_var", filled({2}, 5)}};
  EXPECT_THAT(load_state_dict(net, old).missing_keys, IsEmpty());
  EXPECT_EQ(counter.item<int64_t>(), 7);
  EXPECT_TRUE(at::equal(net->named_buffers()["norm.running_var"], filled({2}, 5)));
  // Without its layer it is missing as all the rest, and under such a name alone it is not a
  // counter.
  EXPECT_THAT(message_of<ValueError>([&] { load_state_dict(net, {}); }),
              HasSubstr("norm.num_batches_tracked"));
  const Model other =
      model_of({{"w", parameter({2})}}, {{"num_batches_tracked", at::zeros({}, at::kLong)}});
  EXPECT_THAT(message_of<ValueError>([&] {
                other.load_state_dict({{"w", at::ones({2})}});
              }),
              HasSubstr("Missing: num_batches_tracked"));
}

struct TiedNetImpl : torch::nn::Module {
  TiedNetImpl() : in(torch::nn::LinearOptions(2, 2).bias(false)), norm(2) {
    register_module("in", in);
    register_module("norm", norm);
    register_parameter("out", in->weight);
  }
  torch::nn::Linear in;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(TiedNet);

TEST(ModuleStateTest, ModulesPointersAndHoldersHaveStateWithoutAModel) {
  TiedNet net;
  NamedTensors state = state_dict(net);
  ASSERT_EQ(state.size(), 6);
  EXPECT_EQ(state[0].first, "out");  // a module's own come before those of modules inside it
  EXPECT_EQ(state_dict(*net, Names::all).back().first, "in.weight");
  EXPECT_EQ(state_dict(net.ptr()).size(), 6);
  state[0].second = filled({2, 2}, 3);
  load_state_dict(net, state);
  EXPECT_TRUE(at::equal(net->in->weight, filled({2, 2}, 3)));
  const auto report = load_state_dict(net.ptr(), {{"m.in.weight", filled({2, 2}, 4)}},
                                      {.strict = false, .strip_prefix = "m."});
  EXPECT_EQ(report.missing_keys.size(), 5);
  EXPECT_TRUE(at::equal(net->in->weight, filled({2, 2}, 4)));
  EXPECT_THAT(message_of<ValueError>([&] { load_state_dict(*net, {}); }),
              HasSubstr("Missing: out, norm.weight"));
}

}  // namespace
}  // namespace bellows::nn
