#include "bellows/optim/make_schedule.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/support/message_of.h"

namespace bellows::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

constexpr RunLength kRun{.steps = 100, .epochs = 10};

Options table(const std::map<std::string, OptionValue>& entries) {
  Options options("schedule");
  for (const auto& [key, value] : entries) options.set(key, value, "demo.toml:7");
  return options;
}

ScheduleChoice made(Options options) {
  ScheduleChoice choice = make_schedule(options, kRun);
  options.reject_unknown();
  return choice;
}

std::string error_of(const std::map<std::string, OptionValue>& entries) {
  return message_of<ValueError>([&] { made(table(entries)); });
}

TEST(MakeScheduleTest, WithoutANameTheRateIsConstant) {
  EXPECT_TRUE(made(table({})).is_constant());
  EXPECT_TRUE(made(table({{"name", "constant"}})).is_constant());
}

TEST(MakeScheduleTest, LinearGoesToZeroOverTheRun) {
  const auto choice = made(table({{"name", "linear"}}));
  EXPECT_EQ(choice.schedule->rate(2, 50), 1);
  EXPECT_EQ(choice.schedule->rate(2, 100), 0);
}

TEST(MakeScheduleTest, EpochsCountWhereTheIntervalSaysSo) {
  const auto choice = made(table({{"name", "CosineAnnealingLR"}, {"interval", "epoch"}}));
  EXPECT_TRUE(choice.by_epoch);
  EXPECT_NEAR(choice.schedule->rate(2, 5), 1, 1e-15);
  EXPECT_NEAR(choice.schedule->rate(2, 10), 0, 1e-15);
}

TEST(MakeScheduleTest, APlateauGoesByAMetricOfTheEpoch) {
  const auto choice = made(table({{"name", "ReduceLROnPlateau"},
                                  {"patience", int64_t{4}},
                                  {"factor", 0.5},
                                  {"metric", "train_loss"}}));
  ASSERT_TRUE(choice.plateau);
  EXPECT_TRUE(choice.by_epoch);
  EXPECT_EQ(choice.metric, "train_loss");
  EXPECT_EQ(choice.plateau->patience, 4);
  EXPECT_EQ(choice.plateau->factor, 0.5);
  EXPECT_EQ(choice.schedule, nullptr);
}

TEST(MakeScheduleTest, ErrorsNameTheKeyAndItsOrigin) {
  EXPECT_THAT(error_of({{"name", "StepLRR"}}),
              AllOf(HasSubstr("schedule.name"), HasSubstr("steplr")));
  EXPECT_THAT(error_of({{"name", "StepLR"}}), HasSubstr("schedule.step_size: is missing"));
  EXPECT_THAT(error_of({{"name", "StepLR"}, {"step_size", int64_t{0}}}),
              AllOf(HasSubstr("demo.toml:7"), HasSubstr("schedule.step_size")));
  EXPECT_THAT(error_of({{"name", "ExponentialLR"}}), HasSubstr("schedule.gamma: is missing"));
  EXPECT_THAT(error_of({{"name", "OneCycleLR"}}), HasSubstr("schedule.max_lr: is missing"));
  EXPECT_THAT(error_of({{"name", "OneCycleLR"}, {"max_lr", 0.1}, {"interval", "batch"}}),
              HasSubstr("schedule.interval"));
  EXPECT_THAT(error_of({{"name", "warmup_cosine"}, {"warmup_steps", int64_t{101}}}),
              HasSubstr("schedule.warmup_steps: got 101, expected at most the 100"));
  EXPECT_THAT(error_of({{"name", "ReduceLROnPlateau"}, {"factor", 1.0}}),
              HasSubstr("schedule.factor"));
  EXPECT_THAT(error_of({{"name", "linear"}, {"gamma", 0.5}}), HasSubstr("schedule.gamma"));
}

}  // namespace
}  // namespace bellows::optim
