#include "bellows/optim/param_groups.h"

#include <cmath>
#include <gmock/gmock.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/rprop.h"
#include "tests/support/message_of.h"

namespace bellows::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

NamedTensors model() {
  NamedTensors parameters;
  for (const char* const name : {"embed.weight", "layers.0.fc.weight", "layers.0.fc.bias",
                                 "layers.1.fc.weight", "layers.1.fc.bias", "head.weight"}) {
    const bool bias = std::string_view(name).ends_with("bias");
    const at::Tensor value = bias ? at::ones({2}) : at::ones({2, 2});
    parameters.emplace_back(name, value.set_requires_grad(true));
  }
  return parameters;
}

std::vector<std::string> names(const NamedTensors& parameters) {
  std::vector<std::string> all;
  for (const auto& [name, parameter] : parameters) all.push_back(name);
  return all;
}

TEST(ParamGroupsTest, PatternsFitWholeNames) {
  EXPECT_TRUE(fits("layers.*.bias", "layers.0.fc.bias"));
  EXPECT_TRUE(fits("*", ""));
  EXPECT_TRUE(fits("layer?.0", "layers.0"));
  EXPECT_TRUE(fits("*a*a", "banana"));
  EXPECT_FALSE(fits("layers", "layers.0"));
  EXPECT_FALSE(fits("layers.*.bias", "layers.0.weight"));
  EXPECT_FALSE(fits("", "a"));
  EXPECT_FALSE(fits("*b", "banana"));
}

TEST(ParamGroupsTest, BiasesHaveNoDecay) {
  const auto groups =
      param_groups(model(), AdamWOptions{.weight_decay = 0.1}, {no_decay_for_vectors()});
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].options.weight_decay, 0.1);
  EXPECT_EQ(groups[1].options.weight_decay, 0);
  EXPECT_THAT(names(groups[1].parameters), ElementsAre("layers.0.fc.bias", "layers.1.fc.bias"));
  const AdamW adamw(groups);
  EXPECT_EQ(adamw.group_count(), 2U);
}

TEST(ParamGroupsTest, LayersFurtherDownHaveSmallerRates) {
  const auto groups =
      param_groups(model(), AdamWOptions{.lr = 1},
                   layerwise_lr_decay({"embed.*", "layers.0.*", "layers.1.*", "head.*"}, 0.5));
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[0].options.lr, 0.125);
  EXPECT_EQ(groups[1].options.lr, 0.25);
  EXPECT_EQ(groups[3].options.lr, 1);
  EXPECT_THAT(names(groups[1].parameters), ElementsAre("layers.0.fc.weight", "layers.0.fc.bias"));
}

TEST(ParamGroupsTest, AllRulesThatHoldScale) {
  const auto groups = param_groups(model(), AdamWOptions{.lr = 1},
                                   {scale_by_name("layers.*", 0.5), scale_by_name("*.bias", 4, 0)});
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[2].options.lr, 2);
  EXPECT_EQ(groups[2].options.weight_decay, 0);
  EXPECT_THAT(names(groups[0].parameters), ElementsAre("embed.weight", "head.weight"));
}

TEST(ParamGroupsTest, RulesThatHoldForNothingAndBadScalesAreRefused) {
  const auto error = [](std::vector<GroupRule> rules) {
    return message_of<ValueError>([&] { param_groups(model(), AdamWOptions(), rules); });
  };
  EXPECT_THAT(error({scale_by_name("encoder.*", 0.5)}),
              HasSubstr("'encoder.*' holds for none of the 6 parameters"));
  EXPECT_THAT(error({scale_by_name("*", -1)}), HasSubstr("lr_scale: got -1"));
  EXPECT_THAT(error({scale_by_name("*", 1, std::nan(""))}), HasSubstr("weight_decay_scale"));
  EXPECT_THAT(message_of<ValueError>(
                  [&] { param_groups(model(), RpropOptions(), {no_decay_for_vectors()}); }),
              HasSubstr("no weight_decay"));
}

TEST(ParamGroupsTest, FrozenParametersGetNoGradients) {
  const NamedTensors parameters = model();
  for (const auto& [name, parameter] : parameters)
    parameter.mutable_grad() = at::ones_like(parameter);
  EXPECT_EQ(freeze(parameters, {"layers.0.*", "embed.*"}), 3U);
  EXPECT_THAT(names(trainable(parameters)),
              ElementsAre("layers.1.fc.weight", "layers.1.fc.bias", "head.weight"));
  EXPECT_FALSE(parameters[0].second.grad().defined());
  EXPECT_TRUE(parameters[5].second.grad().defined());
  AdamW adamw(parameters);
  adamw.step();
  EXPECT_EQ(parameters[0].second[0][0].item<float>(), 1.0F);
  EXPECT_NE(parameters[5].second[0][0].item<float>(), 1.0F);
  EXPECT_EQ(unfreeze(parameters, {"embed.*"}), 1U);
  EXPECT_TRUE(parameters[0].second.requires_grad());
  EXPECT_THAT(message_of<ValueError>([&] {
                freeze(parameters, {"head.*", "encoder.*"});
              }),
              HasSubstr("freeze: no parameter fits 'encoder.*'"));
  EXPECT_TRUE(parameters[5].second.requires_grad());  // nothing was changed
}

}  // namespace
}  // namespace bellows::optim
