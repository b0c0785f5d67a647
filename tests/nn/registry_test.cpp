#include "bellows/nn/registry.h"

#include <cmath>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Model nothing(Options&) {
  return from_function([](const Tree& input) { return input; }, {});
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no ValueError";
}

std::string error_of(const std::string& model, const std::string& key, OptionValue value) {
  Options options("model");
  options.set(key, std::move(value), "a.toml:3");
  return message_of([&] {
    builtin_models().make(model, options);
    options.reject_unknown();
  });
}

TEST(RegistryTest, BuiltinModelsAreListedWithDescriptions) {
  const Registry registry = builtin_models();
  EXPECT_THAT(registry.names(), ElementsAre("convnet", "lstm", "mlp", "resnet18", "transformer"));
  EXPECT_THAT(registry.description("mlp"), HasSubstr("hidden"));
}

TEST(RegistryTest, UnknownModelListsNamesAndTheNearest) {
  Options options;
  EXPECT_EQ(message_of([&] { builtin_models().make("resnet81", options); }),
            "There is no model \"resnet81\", expected one of: convnet, lstm, mlp, resnet18, "
            "transformer. Did you mean resnet18?");
  EXPECT_EQ(message_of([&] { builtin_models().make("perceptron", options); }),
            "There is no model \"perceptron\", expected one of: convnet, lstm, mlp, resnet18, "
            "transformer.");
}

TEST(RegistryTest, OwnModelIsMadeWithTheOptionsGiven) {
  Registry registry = builtin_models();
  int64_t depth = 0;
  registry.add("mine", [&depth](Options& options) {
    depth = options.get_in<int64_t>("depth", 2, 1, 9);
    return nothing(options);
  });
  Options options("model");
  options.set("depth", int64_t{5});
  registry.make("mine", options);
  EXPECT_EQ(depth, 5);
}

TEST(RegistryTest, NameTakenAndEmptyFactoryAreRefused) {
  Registry registry = builtin_models();
  EXPECT_THAT(message_of([&] { registry.add("mlp", nothing); }), HasSubstr("mlp is there already"));
  EXPECT_THAT(message_of([&] { registry.add("", nothing); }), HasSubstr("an empty name"));
  EXPECT_THAT(message_of([&] { registry.add("x", nullptr); }), HasSubstr("an empty factory"));
}

TEST(RegistryTest, OptionsOutOfRangeNameTheKeyAndWhereItStands) {
  EXPECT_THAT(error_of("mlp", "classes", int64_t{0}), HasSubstr("a.toml:3: model.classes: "));
  EXPECT_THAT(error_of("mlp", "in_features", int64_t{-1}), HasSubstr("model.in_features: "));
  EXPECT_EQ(error_of("mlp", "hidden", std::vector<int64_t>{8, 0}),
            "a.toml:3: model.hidden: entry 1: got 0, expected 1 to 1048576");
  EXPECT_EQ(error_of("convnet", "channels", std::vector<int64_t>{}),
            "a.toml:3: model.channels: got 0 entries, expected at least 1");
  EXPECT_THAT(error_of("convnet", "in_channels", int64_t{0}), HasSubstr("model.in_channels: "));
  EXPECT_THAT(error_of("convnet", "channels_last", int64_t{1}), HasSubstr("model.channels_last: "));
  EXPECT_THAT(error_of("resnet18", "classes", int64_t{1} << 40), HasSubstr("model.classes: "));
}

TEST(RegistryTest, OptionsOfSequenceModelsOutOfRangeNameTheKeyAndWhereItStands) {
  for (const std::string model : {"lstm", "transformer"}) {
    EXPECT_EQ(error_of(model, "dropout", 1.0),
              "a.toml:3: model.dropout: got 1.0, expected 0 or more and less than 1");
    EXPECT_THAT(error_of(model, "dropout", -0.1), HasSubstr("model.dropout: got -0.1, "));
    EXPECT_THAT(error_of(model, "dropout", std::nan("")), HasSubstr("model.dropout: got nan, "));
    EXPECT_THAT(error_of(model, "in_features", int64_t{0}), HasSubstr("model.in_features: "));
    EXPECT_THAT(error_of(model, "layers", int64_t{0}), HasSubstr("model.layers: "));
    EXPECT_THAT(error_of(model, "classes", int64_t{0}), HasSubstr("model.classes: "));
  }
  EXPECT_THAT(error_of("lstm", "hidden", int64_t{0}), HasSubstr("model.hidden: "));
  EXPECT_THAT(error_of("lstm", "bidirectional", int64_t{1}), HasSubstr("model.bidirectional: "));
  EXPECT_EQ(error_of("transformer", "heads", int64_t{3}),
            "a.toml:3: model.heads: got 3 heads and width 64, expected a width that heads divides");
  EXPECT_EQ(error_of("transformer", "width", int64_t{30}),
            "a.toml:3: model.width: got 4 heads and width 30, expected a width that heads divides");
  EXPECT_EQ(error_of("transformer", "activation", "tanh"),
            "a.toml:3: model.activation: got \"tanh\", expected one of relu, gelu");
  for (const std::string key : {"width", "heads", "feedforward", "max_tokens"})
    EXPECT_THAT(error_of("transformer", key, int64_t{0}), HasSubstr("model." + key + ": got 0"));
  EXPECT_THAT(error_of("transformer", "norm_first", int64_t{1}), HasSubstr("model.norm_first: "));
}

TEST(RegistryTest, OptionOfNoUseToTheModelIsUnknown) {
  EXPECT_THAT(error_of("mlp", "channels", std::vector<int64_t>{8}), HasSubstr("model.channels"));
}

}  // namespace
}  // namespace bellows::nn
