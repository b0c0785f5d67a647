#include "bellows/nn/registry.h"

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
  EXPECT_THAT(registry.names(), ElementsAre("convnet", "mlp", "resnet18"));
  EXPECT_THAT(registry.description("mlp"), HasSubstr("hidden"));
}

TEST(RegistryTest, UnknownModelListsNamesAndTheNearest) {
  Options options;
  EXPECT_EQ(message_of([&] { builtin_models().make("resnet81", options); }),
            "There is no model \"resnet81\", expected one of: convnet, mlp, resnet18. Did you mean "
            "resnet18?");
  EXPECT_EQ(message_of([&] { builtin_models().make("transformer", options); }),
            "There is no model \"transformer\", expected one of: convnet, mlp, resnet18.");
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

TEST(RegistryTest, OptionOfNoUseToTheModelIsUnknown) {
  EXPECT_THAT(error_of("mlp", "channels", std::vector<int64_t>{8}), HasSubstr("model.channels"));
}

}  // namespace
}  // namespace bellows::nn
