#include "bellows/train/learning_rate.h"

#include <cmath>
#include <gmock/gmock.h>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/optim/sgd.h"
#include "bellows/train/trainer.h"
#include "tests/support/message_of.h"
#include "tests/support/process.h"

namespace bellows::train {
namespace {

/// Ten steps an epoch on one parameter whose gradient is 1: after a run the parameter is 1 minus
/// the sum of the rates.
struct Job {
  Job() {
    training = data::make_loader(
        std::make_shared<data::TensorDataset>(std::vector<at::Tensor>{at::ones({10})}),
        std::make_shared<data::SequentialSampler>(10), {});
    trainer = std::make_unique<Trainer>(
        nn::from_function([](const Tree& input) { return input; }, {{"weight", weight}}), optimizer,
        [this](const nn::Model&, const Tree&) {
          return StepOutput{weight.sum(), {}};
        },
        TrainerOptions{.epochs = 2});
    trainer->add(std::make_shared<LearningRate>(
        optimizer, std::make_shared<optim::LinearLR>(optim::LinearLROptions{
                       .start_factor = 1, .end_factor = 0, .total_iters = 20})));
  }
  at::Tensor weight = at::ones({1}, at::kDouble).requires_grad_();
  optim::SGD optimizer{{{"weight", weight}}, {.lr = 0.1}};
  std::unique_ptr<data::Loader> training;
  std::unique_ptr<Trainer> trainer;
};

TEST(LearningRateTest, FollowsTheSchedule) {
  Job job;
  job.trainer->fit(*job.training);
  double sum = 0;
  for (int step = 0; step < 20; ++step) sum += 0.1 * (1 - step / 20.0);
  EXPECT_NEAR(job.weight.item<double>(), 1 - sum, 1e-12);
  EXPECT_EQ(job.optimizer.lr(0), 0.0);
}

TEST(LearningRateTest, ResumedRunHasTheSameRates) {
  class Stop : public Callback {
   public:
    void on_step(Trainer& trainer, const Progress& progress) override {
      if (progress.step == 7) trainer.stop();
    }
  };
  testing::TemporaryFolder folder;
  Job whole, first, second;
  whole.trainer->fit(*whole.training);
  first.trainer->add(std::make_shared<Stop>());
  first.trainer->fit(*first.training);
  second.trainer->load(first.trainer->save(folder.path()), *second.training);
  second.trainer->fit(*second.training);
  EXPECT_EQ(whole.weight.item<double>(), second.weight.item<double>());
}

/// Four epochs of the same job, with the learning rate as chosen.
struct ChosenJob {
  explicit ChosenJob(optim::ScheduleChoice choice, double lr = 0.1)
      : optimizer({{"weight", weight}}, {.lr = lr}) {
    training = data::make_loader(
        std::make_shared<data::TensorDataset>(std::vector<at::Tensor>{at::ones({10})}),
        std::make_shared<data::SequentialSampler>(10), {});
    trainer = std::make_unique<Trainer>(
        nn::from_function([](const Tree& input) { return input; }, {{"weight", weight}}), optimizer,
        [this](const nn::Model&, const Tree&) {
          return StepOutput{weight.sum().mul(0).add(1), {}};  // never gets better
        },
        TrainerOptions{.epochs = 4});
    trainer->add(std::make_shared<LearningRate>(optimizer, std::move(choice)));
    trainer->add(recorder);
  }
  struct Recorder : Callback {
    void on_step(Trainer& trainer, const Progress&) override {
      rates.push_back(trainer.optimizer().lr(0));
    }
    std::vector<double> rates;
  };
  at::Tensor weight = at::ones({1}, at::kDouble).requires_grad_();
  optim::SGD optimizer;
  std::unique_ptr<data::Loader> training;
  std::unique_ptr<Trainer> trainer;
  std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
};

class StopAfter : public Callback {
 public:
  explicit StopAfter(int64_t epochs) : epochs_(epochs) {}
  void on_epoch(Trainer& trainer, const Progress& progress, const Values&) override {
    if (progress.epoch == epochs_) trainer.stop();
  }

 private:
  int64_t epochs_;
};

TEST(LearningRateTest, EpochsCountWhereTheIntervalSaysSo) {
  ChosenJob job({.schedule = std::make_shared<optim::ExponentialLR>(0.5), .by_epoch = true});
  job.trainer->fit(*job.training);
  ASSERT_EQ(job.recorder->rates.size(), 40U);
  for (size_t step = 0; step < 40; ++step) {
    EXPECT_EQ(job.recorder->rates[step], 0.1 * std::pow(0.5, step / 10)) << step;
  }
}

optim::ScheduleChoice plateau() {
  return {.plateau = optim::ReduceLROnPlateauOptions{.factor = 0.5, .patience = 0},
          .metric = "train_loss",
          .by_epoch = true};
}

TEST(LearningRateTest, APlateauLowersTheRateAtTheEndOfAnEpoch) {
  ChosenJob job(plateau());
  job.trainer->fit(*job.training);
  EXPECT_EQ(job.recorder->rates[19], 0.1);
  EXPECT_EQ(job.recorder->rates[20], 0.05);
  EXPECT_EQ(job.recorder->rates[30], 0.025);
}

TEST(LearningRateTest, AResumedPlateauGoesOnAlsoFromAnotherRate) {
  testing::TemporaryFolder folder;
  ChosenJob first(plateau());
  first.trainer->add(std::make_shared<StopAfter>(2));
  first.trainer->fit(*first.training);
  const auto checkpoint = first.trainer->save(folder.path());
  ChosenJob same(plateau()), larger(plateau(), 0.3);
  same.trainer->load(checkpoint, *same.training);
  same.trainer->fit(*same.training);
  EXPECT_EQ(same.recorder->rates.front(), 0.05);
  EXPECT_EQ(same.recorder->rates.back(), 0.025);
  larger.trainer->load(checkpoint, *larger.training);
  larger.trainer->fit(*larger.training);
  EXPECT_NEAR(larger.recorder->rates.front(), 0.15, 1e-12);
}

TEST(LearningRateTest, AMetricThatIsNotReportedIsNamed) {
  optim::ScheduleChoice choice = plateau();
  choice.metric = "test_accuracy";
  ChosenJob job(choice);
  EXPECT_THAT(testing::message_of<ValueError>([&] { job.trainer->fit(*job.training); }),
              ::testing::HasSubstr("watches test_accuracy, which this run does not report"));
}

TEST(LearningRateTest, NoScheduleIsRefused) {
  Job job;
  EXPECT_THROW(LearningRate(job.optimizer, nullptr), ValueError);
}

}  // namespace
}  // namespace bellows::train
