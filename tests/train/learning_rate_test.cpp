#include "bellows/train/learning_rate.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/optim/sgd.h"
#include "bellows/train/trainer.h"
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

TEST(LearningRateTest, NoScheduleIsRefused) {
  Job job;
  EXPECT_THROW(LearningRate(job.optimizer, nullptr), ValueError);
}

}  // namespace
}  // namespace bellows::train
