#include "bellows/optim/schedule.h"

#include <cmath>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/optim/schedule_compose.h"
#include "bellows/optim/schedule_cosine.h"
#include "bellows/optim/schedule_cycle.h"
#include "tests/support/message_of.h"

namespace bellows::optim {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

TEST(LinearLRTest, DefaultsArePyTorchs) {
  const LinearLR schedule;
  // torch.optim.lr_scheduler.LinearLR over its first steps: (1/3) (1 + 0.4 k), then 1.
  for (int step = 0; step < 5; ++step) {
    EXPECT_NEAR(schedule.factor(step), (1 + 0.4 * step) / 3, 1e-15);
  }
  EXPECT_EQ(schedule.factor(5), 1.0);
  EXPECT_EQ(schedule.factor(1000), 1.0);
}

TEST(LinearLRTest, DecaysToZero) {
  const LinearLR schedule({.start_factor = 1, .end_factor = 0, .total_iters = 4});
  EXPECT_EQ(schedule.factor(0), 1.0);
  EXPECT_EQ(schedule.factor(1), 0.75);
  EXPECT_EQ(schedule.factor(4), 0.0);
  EXPECT_EQ(schedule.factor(5), 0.0);
}

TEST(LinearLRTest, OptionsAreChecked) {
  EXPECT_THROW(LinearLR({.start_factor = 0}), ValueError);
  EXPECT_THROW(LinearLR({.start_factor = 1.5}), ValueError);
  EXPECT_THROW(LinearLR({.end_factor = -0.1}), ValueError);
  EXPECT_THROW(LinearLR({.end_factor = std::nan("")}), ValueError);
  EXPECT_THROW(LinearLR({.total_iters = 0}), ValueError);
}

TEST(ScheduleTest, OptionsAreChecked) {
  EXPECT_THROW(ConstantLR({.factor = 1.5}), ValueError);
  EXPECT_THROW(StepLR({.step_size = 0}), ValueError);
  EXPECT_THROW(StepLR({.step_size = 1, .gamma = -1}), ValueError);
  EXPECT_THROW(MultiStepLR({.milestones = {1}, .gamma = std::nan("")}), ValueError);
  EXPECT_THROW(ExponentialLR(-0.5), ValueError);
  EXPECT_THROW(PolynomialLR({.total_iters = 0}), ValueError);
  EXPECT_THROW(LambdaLR(std::vector<RateFunction>{nullptr}), ValueError);
  EXPECT_THROW(CosineAnnealingLR({.T_max = 0}), ValueError);
  EXPECT_THROW(CosineAnnealingWarmRestarts({.T_0 = 5, .T_mult = 0}), ValueError);
  EXPECT_THROW(WarmupCosine({.warmup_steps = 5, .total_steps = 4}), ValueError);
  EXPECT_THROW(SWALR({.swa_lr = {}}), ValueError);
  EXPECT_THROW(SWALR({.swa_lr = {0.1}, .anneal_strategy = "exp"}), ValueError);
  EXPECT_THROW(CyclicLR({.base_lr = {0.1}, .max_lr = {0.2}, .mode = "square"}), ValueError);
  EXPECT_THROW(CyclicLR({.base_lr = {}, .max_lr = {0.2}}), ValueError);
  EXPECT_THROW(OneCycleLR({.max_lr = {0.2}}), ValueError);
  EXPECT_THROW(OneCycleLR({.max_lr = {0.2}, .total_steps = 9, .pct_start = 2}), ValueError);
}

TEST(ScheduleTest, AGroupWithoutAValueIsNamed) {
  const OneCycleLR schedule({.max_lr = {0.2, 0.1}, .total_steps = 9});
  EXPECT_THAT(message_of<ValueError>([&] { static_cast<void>(schedule.rate(1, 0, 2)); }),
              HasSubstr("max_lr: got 2 values, expected one for each parameter group; there is a "
                        "group 2"));
}

TEST(ScheduleTest, OneCycleEnds) {
  const OneCycleLR schedule({.max_lr = {0.2}, .total_steps = 9});
  EXPECT_THAT(message_of<ValueError>([&] { static_cast<void>(schedule.rate(1, 10)); }),
              HasSubstr("got step 10, expected at most total_steps = 9"));
}

TEST(ScheduleTest, MultiplicativeIsTheSameFromAnyStep) {
  const auto factor = [](int64_t step) { return 1 - 0.1 / static_cast<double>(step); };
  const MultiplicativeLR in_order(factor), at_once(factor);
  for (int64_t step = 0; step < 20; ++step) static_cast<void>(in_order.rate(1, step));
  EXPECT_EQ(in_order.rate(1, 20), at_once.rate(1, 20));
  EXPECT_EQ(in_order.rate(1, 3), MultiplicativeLR(factor).rate(1, 3));  // and back
}

TEST(ScheduleTest, ChainsTakeOnlyWhatScales) {
  const auto exponential = std::make_shared<ExponentialLR>(0.5);
  const auto lambda = std::make_shared<LambdaLR>([](int64_t) { return 1.0; });
  EXPECT_EQ(ChainedScheduler({exponential, exponential}).rate(1, 2), 0.0625);
  EXPECT_THAT(message_of<ValueError>([&] {
                ChainedScheduler({exponential, lambda});
              }),
              HasSubstr("number 1) that sets the rate"));
  EXPECT_THROW(ChainedScheduler({}), ValueError);
  EXPECT_THROW(ChainedScheduler({nullptr}), ValueError);
}

TEST(ScheduleTest, SequencesAreChecked) {
  const auto one = std::make_shared<ExponentialLR>(0.5);
  EXPECT_THROW(SequentialLR({one, one}, {}), ValueError);
  EXPECT_THROW(SequentialLR({one, one, one}, {5, 3}), ValueError);
  EXPECT_THROW(SequentialLR({}, {}), ValueError);
}

}  // namespace
}  // namespace bellows::optim
