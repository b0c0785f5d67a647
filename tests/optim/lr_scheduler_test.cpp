#include "bellows/optim/lr_scheduler.h"

#include <cmath>
#include <gmock/gmock.h>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>

#include "bellows/core/error.h"
#include "bellows/optim/adagrad.h"
#include "bellows/optim/schedule_cosine.h"
#include "bellows/optim/schedule_cycle.h"
#include "bellows/optim/sgd.h"
#include "tests/support/message_of.h"

namespace bellows::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

/// Two groups with rates 1 and 0.1, on a schedule of several drops.
struct Training {
  Training() {
    const auto parameter = [] { return at::ones({1}).set_requires_grad(true); };
    optimizer = std::make_unique<SGD>(std::vector<ParamGroup<SGDOptions>>{
        {{{"a", parameter()}}, {.lr = 1}}, {{{"b", parameter()}}, {.lr = 0.1}}});
  }
  void schedule(int64_t last_epoch = -1) {
    scheduler = std::make_unique<LRScheduler>(
        *optimizer, std::make_shared<MultiStepLR>(MultiStepLROptions{{2, 4, 6}, 0.5}), last_epoch);
  }
  void steps(int count) const {
    for (int i = 0; i < count; ++i) {
      optimizer->step();
      scheduler->step();
    }
  }
  std::vector<double> rates() const { return {optimizer->lr(0), optimizer->lr(1)}; }

  std::unique_ptr<SGD> optimizer;
  std::unique_ptr<LRScheduler> scheduler;
};

/// A run of five steps, and what it saves.
struct Saved {
  Saved() {
    run.schedule();
    run.steps(5);
    scheduler = run.scheduler->state_dict();
    optimizer = run.optimizer->state_dict();
  }
  Training run;
  Tree scheduler, optimizer;
};

TEST(LRSchedulerTest, TwoGroupsKeepTheirProportion) {
  Training run;
  run.schedule();
  EXPECT_THAT(run.rates(), ElementsAre(1, 0.1));
  run.steps(4);
  EXPECT_THAT(run.rates(), ElementsAre(0.25, 0.025));
  EXPECT_THAT(run.scheduler->get_last_lr(), ElementsAre(0.25, 0.025));
  EXPECT_EQ(run.scheduler->last_epoch(), 4);
}

// Whatever is restored, and whenever the scheduler is made, the rates are right or it is an error.
TEST(LRSchedulerTest, BothRestoredInAnyOrderGoOn) {
  const Saved saved;
  for (const bool scheduler_first : {false, true}) {
    for (const bool made_before : {false, true}) {
      Training run;
      if (made_before || scheduler_first) run.schedule();
      if (scheduler_first) run.scheduler->load_state_dict(saved.scheduler);
      run.optimizer->load_state_dict(saved.optimizer);
      if (!made_before && !scheduler_first) run.schedule();
      if (!scheduler_first) run.scheduler->load_state_dict(saved.scheduler);
      EXPECT_THAT(run.rates(), ElementsAre(0.25, 0.025));
      run.steps(1);
      EXPECT_THAT(run.rates(), ElementsAre(0.125, 0.0125));
    }
  }
}

TEST(LRSchedulerTest, TheSchedulerRestoredAloneSetsTheRates) {
  const Saved saved;
  Training run;
  run.schedule();
  run.scheduler->load_state_dict(saved.scheduler);
  EXPECT_THAT(run.rates(), ElementsAre(0.25, 0.025));
  run.steps(1);
  EXPECT_THAT(run.rates(), ElementsAre(0.125, 0.0125));
}

TEST(LRSchedulerTest, TheOptimizerRestoredAloneGoesOnWithLastEpoch) {
  const Saved saved;
  Training run;
  run.optimizer->load_state_dict(saved.optimizer);
  run.schedule(/*last_epoch=*/4);
  EXPECT_THAT(run.rates(), ElementsAre(0.25, 0.025));
  run.steps(1);
  EXPECT_THAT(run.rates(), ElementsAre(0.125, 0.0125));
}

TEST(LRSchedulerTest, TheOptimizerRestoredUnderANewSchedulerIsAnError) {
  const Saved saved;
  Training run;
  run.schedule();
  run.optimizer->load_state_dict(saved.optimizer);
  EXPECT_THAT(message_of<ValueError>([&] { run.scheduler->step(); }),
              HasSubstr("the rate of group 0 is 0.25, not 1"));
}

TEST(LRSchedulerTest, ANewScheduleAfterTheOptimizerWasRestoredBeginsWithTheInitialRates) {
  const Saved saved;
  Training run;
  run.optimizer->load_state_dict(saved.optimizer);
  run.schedule();
  EXPECT_THAT(run.rates(), ElementsAre(1, 0.1));
}

TEST(LRSchedulerTest, LastEpochWithoutKnownInitialRatesIsAnError) {
  Training run;
  EXPECT_THAT(message_of<ValueError>([&] { run.schedule(4); }),
              HasSubstr("group 0 of SGD does not know its initial rate"));
}

TEST(LRSchedulerTest, StateOfOtherGroupsIsRefused) {
  const Saved saved;
  SGD one({{"a", at::ones({1}).set_requires_grad(true)}});
  LRScheduler scheduler(one, std::make_shared<ExponentialLR>(0.5));
  EXPECT_THAT(message_of<ValueError>([&] { scheduler.load_state_dict(saved.scheduler); }),
              HasSubstr("has 2 parameter groups, the optimizer 1"));
}

TEST(LRSchedulerTest, MovesOptimizersOfLibTorch) {
  const at::Tensor weight = at::ones({1}).set_requires_grad(true);
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(0.5));
  const auto adapted = adapt(sgd, {{"w", weight}});
  LRScheduler scheduler(*adapted, std::make_shared<ExponentialLR>(0.5));
  scheduler.step();
  scheduler.step();
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.125);
  const Tree saved = adapted->state_dict();
  torch::optim::SGD fresh({weight}, torch::optim::SGDOptions(0.5));
  const auto again = adapt(fresh, {{"w", weight}});
  again->load_state_dict(saved);
  EXPECT_EQ(again->initial_lr(0), 0.5);
  const LRScheduler continued(*again, std::make_shared<ExponentialLR>(0.5), 1);
  EXPECT_EQ(again->lr(0), 0.125);
}

TEST(LRSchedulerTest, MomentumThatThereIsNotCannotBeCycled) {
  Adagrad adagrad({{"w", at::ones({1}).set_requires_grad(true)}});
  const auto schedule =
      std::make_shared<OneCycleLR>(OneCycleLROptions{.max_lr = {0.1}, .total_steps = 10});
  EXPECT_THAT(message_of<ValueError>([&] { LRScheduler(adagrad, schedule); }),
              HasSubstr("Adagrad: it has neither momentum nor betas"));
}

TEST(LRSchedulerTest, SwaBeginsWithTheRateOfNow) {
  Training run;
  run.schedule();
  run.steps(4);
  const LRScheduler swa(*run.optimizer, std::make_shared<SWALR>(SWALROptions{.swa_lr = {0.05}}));
  EXPECT_THAT(run.rates(), ElementsAre(0.25, 0.025));
  EXPECT_EQ(run.optimizer->initial_lr(0), 1);
}

TEST(LRSchedulerTest, NoScheduleIsRefused) {
  const Training run;
  EXPECT_THROW(LRScheduler(*run.optimizer, nullptr), ValueError);
}

TEST(ReduceLROnPlateauTest, OptionsAreChecked) {
  const Training run;
  const auto error = [&](ReduceLROnPlateauOptions options) {
    return message_of<ValueError>([&] { ReduceLROnPlateau(*run.optimizer, options); });
  };
  EXPECT_THAT(error({.mode = "least"}), HasSubstr("mode: got least, expected min or max"));
  EXPECT_THAT(error({.factor = 1}), HasSubstr("factor: got 1"));
  EXPECT_THAT(error({.threshold_mode = "x"}), HasSubstr("threshold_mode"));
  EXPECT_THAT(error({.min_lr = {0, 0, 0}}), HasSubstr("min_lr: got 3 values for 2 groups"));
}

TEST(ReduceLROnPlateauTest, SmallestRatesAreByGroup) {
  const Training run;
  ReduceLROnPlateau plateau(*run.optimizer, {.factor = 0.1, .patience = 0, .min_lr = {0.5, 0.001}});
  plateau.step(1);
  EXPECT_THAT(run.rates(), ElementsAre(1, 0.1));
  plateau.step(1);
  EXPECT_THAT(plateau.get_last_lr(), ElementsAre(0.5, 0.1 * 0.1));
}

TEST(ReduceLROnPlateauTest, NanIsNeverBetter) {
  const Training run;
  ReduceLROnPlateau plateau(*run.optimizer, {.patience = 1});
  plateau.step(std::nan(""));
  EXPECT_EQ(run.optimizer->lr(0), 1);
  plateau.step(std::nan(""));
  EXPECT_EQ(run.optimizer->lr(0), 0.1);
}

}  // namespace
}  // namespace bellows::optim
