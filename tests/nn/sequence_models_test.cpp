// What lstm and transformer have in common, and the transformer's parts.
#include <gmock/gmock.h>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/nn/lstm.h"
#include "bellows/nn/registry.h"
#include "bellows/nn/transformer.h"
#include "bellows/optim/adamw.h"

namespace bellows::nn {
namespace {

using ::testing::ElementsAre;

using Settings = std::vector<std::pair<std::string, OptionValue>>;

Model make(const std::string& name, const Settings& settings = {}) {
  Options options;
  for (const auto& [key, value] : settings) options.set(key, value);
  at::manual_seed(1);
  Model model = builtin_models().make(name, options);
  options.reject_unknown();
  return model;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no ValueError";
}

std::string forward_error(const Model& model, at::IntArrayRef shape) {
  return message_of([&] { model.forward(at::zeros(shape)); });
}

class SequenceModelTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Every, SequenceModelTest, ::testing::Values("lstm", "transformer"),
                         [](const auto& info) { return info.param; });

// The first step decides: a model has to remember it, or to know its position.
TEST_P(SequenceModelTest, LearnsWhatTheFirstStepSays) {
  Settings small = {{"in_features", int64_t{2}}, {"classes", int64_t{2}}};
  if (GetParam() == "lstm") small.emplace_back("hidden", int64_t{16});
  if (GetParam() == "transformer")
    small.insert(small.end(), {{"width", int64_t{16}}, {"feedforward", int64_t{32}}});
  const Model model = make(GetParam(), small);
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-2});
  const auto loss_of = [&](const at::Tensor& input) {
    const at::Tensor target = input.select(1, 0).select(1, 0).gt(0).to(at::kLong);
    return at::cross_entropy_loss(model.forward(input).tensor(), target);
  };
  const at::Tensor unseen = at::randn({256, 6, 2});
  model.eval();
  const double before = loss_of(unseen).item<double>();
  model.train();
  for (int step = 0; step < 150; ++step) {
    optimizer.zero_grad();
    loss_of(at::randn({64, 6, 2})).backward();
    optimizer.step();
  }
  model.eval();
  const double after = loss_of(unseen).item<double>();
  EXPECT_GT(before, 0.6);
  EXPECT_LT(after, 0.1);
}

TEST_P(SequenceModelTest, ImageIsReadRowByRowWithItsChannelsSideBySide) {
  const at::NoGradGuard no_grad;
  const Model model = make(GetParam(), {{"in_features", int64_t{12}}});
  model.eval();
  const at::Tensor image = at::randn({2, 3, 6, 4});
  std::vector<at::Tensor> rows;
  for (int64_t y = 0; y < 6; ++y) {
    const at::Tensor row = image.select(2, y);
    rows.push_back(at::cat({row.select(1, 0), row.select(1, 1), row.select(1, 2)}, 1));
  }
  const at::Tensor expected = model.forward(at::stack(rows, 1)).tensor();
  EXPECT_TRUE(at::equal(model.forward(image).tensor(), expected));
  const at::Tensor last = image.contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(at::equal(model.forward(last).tensor(), expected));
}

TEST_P(SequenceModelTest, DropoutActsInTrainingOnly) {
  const at::NoGradGuard no_grad;
  const Model model = make(GetParam(), {{"dropout", 0.5}, {"layers", int64_t{2}}});
  const at::Tensor input = at::randn({2, 5, 28});
  EXPECT_FALSE(at::equal(model.forward(input).tensor(), model.forward(input).tensor()));
  model.eval();
  EXPECT_TRUE(at::equal(model.forward(input).tensor(), model.forward(input).tensor()));
}

TEST_P(SequenceModelTest, InputsOfAnotherShapeAreRefused) {
  const Model model = make(GetParam());
  const std::string name = GetParam() == "lstm" ? "LstmClassifier" : "TransformerClassifier";
  EXPECT_EQ(forward_error(model, {5, 28}),
            name +
                ": input of shape [5, 28]: got 2 dimensions, expected sequences [N, T, "
                "in_features] or images [N, C, H, W].");
  EXPECT_EQ(forward_error(model, {2, 5, 27}),
            name + ": input of shape [2, 5, 27]: in_features: got 27 in a step, expected 28.");
  EXPECT_EQ(forward_error(model, {2, 3, 28, 28}),
            name +
                ": input of shape [2, 3, 28, 28]: in_features: got 84 (channels * width) in a "
                "step, expected 28.");
  EXPECT_EQ(forward_error(model, {2, 0, 28}),
            name + ": input of shape [2, 0, 28]: got no steps, expected at least 1.");
}

TEST(LstmClassifierTest, OptionsOutOfRangeAreRefused) {
  EXPECT_EQ(message_of([] { LstmClassifier(LstmClassifierOptions{.hidden = 0}); }),
            "LstmClassifier: hidden: got 0, expected 1 to 1048576.");
  EXPECT_EQ(message_of([] { LstmClassifier(LstmClassifierOptions{.dropout = 1}); }),
            "LstmClassifier: dropout: got 1.0, expected 0 or more and less than 1.");
}

TEST(TransformerClassifierTest, OptionsOutOfRangeAreRefused) {
  EXPECT_EQ(
      message_of([] { TransformerClassifier(TransformerClassifierOptions{.max_tokens = 0}); }),
      "TransformerClassifier: max_tokens: got 0, expected 1 to 1048576.");
  EXPECT_EQ(message_of([] {
              TransformerClassifier(TransformerClassifierOptions{.layer = {.width = 30}});
            }),
            "TransformerClassifier: heads: got 4, expected a divisor of width 30.");
  EXPECT_EQ(message_of([] { TransformerEncoderLayer(TransformerEncoderLayerOptions{.heads = 3}); }),
            "TransformerEncoderLayer: heads: got 3, expected a divisor of width 64.");
  EXPECT_EQ(
      message_of([] { TransformerEncoderLayer(TransformerEncoderLayerOptions{.dropout = -0.5}); }),
      "TransformerEncoderLayer: dropout: got -0.5, expected 0 or more and less than 1.");
  EXPECT_EQ(message_of([] { SelfAttention(64, 0, 0.0); }),
            "SelfAttention: heads: got 0, expected 1 to 1048576.");
  EXPECT_EQ(message_of([] { TransformerEncoder(TransformerEncoderLayerOptions(), 0); }),
            "TransformerEncoder: layers: got 0, expected 1 to 1048576.");
}

TEST(TransformerClassifierTest, MoreTokensThanPositionsAreRefused) {
  const Model model = make("transformer", {{"max_tokens", int64_t{5}}});
  EXPECT_EQ(forward_error(model, {2, 5, 28}), "no ValueError");
  EXPECT_EQ(forward_error(model, {2, 6, 28}),
            "TransformerClassifier: input of shape [2, 6, 28]: max_tokens: got 6 tokens, expected "
            "at most 5.");
  EXPECT_EQ(forward_error(model, {2, 1, 6, 28}),
            "TransformerClassifier: input of shape [2, 1, 6, 28]: max_tokens: got 6 tokens, "
            "expected at most 5.");
}

TEST(TransformerClassifierTest, NamesAreInPythonsOrder) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : make("transformer", {{"layers", int64_t{1}}}).state_dict())
    names.push_back(name);
  const std::string layer = "encoder.layers.0.";
  EXPECT_THAT(
      names,
      ElementsAre("position", "embed.weight", "embed.bias", layer + "self_attn.in_proj_weight",
                  layer + "self_attn.in_proj_bias", layer + "self_attn.out_proj.weight",
                  layer + "self_attn.out_proj.bias", layer + "linear1.weight",
                  layer + "linear1.bias", layer + "linear2.weight", layer + "linear2.bias",
                  layer + "norm1.weight", layer + "norm1.bias", layer + "norm2.weight",
                  layer + "norm2.bias", "classifier.weight", "classifier.bias"));
}

TEST(TransformerEncoderTest, LayersStartEqualAndAreIndependent) {
  const at::NoGradGuard no_grad;
  at::manual_seed(1);
  TransformerEncoder encoder(TransformerEncoderLayerOptions(), 3);
  const at::Tensor next_draw = at::randn({4});
  at::manual_seed(1);
  const TransformerEncoderLayer alone;
  EXPECT_TRUE(at::equal(at::randn({4}), next_draw)) << "copies must not draw";
  const auto tensors = encoder->named_parameters();
  for (const auto& item : alone->named_parameters())
    for (const std::string layer : {"layers.0.", "layers.1.", "layers.2."})
      EXPECT_TRUE(at::equal(tensors[layer + item.key()], item.value())) << layer << item.key();
  for (const auto& item : alone->named_parameters()) tensors["layers.0." + item.key()].fill_(7);
  for (const auto& item : alone->named_parameters())
    EXPECT_TRUE(at::equal(tensors["layers.2." + item.key()], item.value())) << item.key();
}

}  // namespace
}  // namespace bellows::nn
