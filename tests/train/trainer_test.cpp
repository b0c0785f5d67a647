#include "bellows/train/trainer.h"

#include <csignal>
#include <gmock/gmock.h>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/core/interrupt.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/device/seed.h"
#include "bellows/optim/adamw.h"
#include "bellows/train/checkpointing.h"
#include "bellows/train/early_stopping.h"
#include "tests/support/process.h"

namespace bellows::train {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSamples = 50, kBatch = 8, kBatches = 7;

/// Linear regression with noise on the input while training, so that the random state matters.
struct Regression {
  Regression() {
    seed_everything(3);
    weight = at::randn({4, 1}).requires_grad_();
    bias = at::zeros({1}).requires_grad_();
    const at::Tensor inputs = at::randn({kSamples, 4}), targets = at::randn({kSamples, 1});
    dataset = std::make_shared<data::TensorDataset>(std::vector<at::Tensor>{inputs, targets});
    training = data::make_loader(dataset, std::make_shared<data::RandomSampler>(kSamples, 5),
                                 {.batch_size = kBatch});
    evaluation = data::make_loader(dataset, std::make_shared<data::SequentialSampler>(kSamples),
                                   {.batch_size = 20});
    optimizer = std::make_unique<optim::AdamW>(parameters());
  }
  NamedTensors parameters() const { return {{"weight", weight}, {"bias", bias}}; }
  nn::Model model() const {
    return nn::from_function(
        [weight = weight, bias = bias](const Tree& input) {
          return Tree(at::addmm(bias, input.tensor(), weight));
        },
        parameters());
  }
  static StepFunction step() {
    return [](const nn::Model& model, const Tree& batch) {
      at::Tensor input = batch[0].tensor();
      if (model.is_training()) input = input.add(at::randn(input.sizes()), 0.1);
      return StepOutput{at::mse_loss(model.forward(input).tensor(), batch[1].tensor()), {}};
    };
  }

  at::Tensor weight, bias;
  std::shared_ptr<const data::Dataset> dataset;
  std::unique_ptr<data::Loader> training, evaluation;
  std::unique_ptr<optim::Optimizer> optimizer;
};

/// Does something at one step; 0 is the start.
class AtStep : public Callback {
 public:
  AtStep(int64_t step, std::function<void(Trainer&)> action)
      : step_(step), action_(std::move(action)) {}
  void on_start(Trainer& trainer, const Progress&) override {
    if (step_ == 0) action_(trainer);
  }
  void on_step(Trainer& trainer, const Progress& progress) override {
    if (progress.step == step_) action_(trainer);
  }

 private:
  int64_t step_;
  std::function<void(Trainer&)> action_;
};

std::string fit_error(Regression& job, StepFunction step) {
  Trainer trainer(job.model(), *job.optimizer, std::move(step), {.epochs = 1});
  try {
    trainer.fit(*job.training);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(TrainerTest, CountsStepsEpochsAndSamples) {
  Regression job;
  Trainer trainer(job.model(), *job.optimizer, Regression::step(), {.epochs = 3});
  EXPECT_EQ(trainer.fit(*job.training, job.evaluation.get()), Outcome::completed);
  EXPECT_EQ(trainer.progress().step, 3 * kBatches);
  EXPECT_EQ(trainer.progress().epoch, 3);
  EXPECT_EQ(trainer.progress().samples, 3 * kSamples);
  EXPECT_TRUE(trainer.last_values().contains("train_loss"));
  EXPECT_TRUE(trainer.last_values().contains("test_loss"));
}

TEST(TrainerTest, TrainingLowersTheLoss) {
  Regression job;
  Trainer trainer(job.model(), *job.optimizer, Regression::step(), {.epochs = 60});
  const double before = trainer.evaluate(*job.evaluation)->at("loss");
  trainer.fit(*job.training);
  EXPECT_LT(trainer.evaluate(*job.evaluation)->at("loss"), before);
}

TEST(TrainerTest, EvaluationIsAMeanOverSamplesAndMovesNothing) {
  Regression job;
  Trainer trainer(job.model(), *job.optimizer, Regression::step());
  const Tree before = RandomState().state_dict();
  const double loss = trainer.evaluate(*job.evaluation)->at("loss");
  at::NoGradGuard no_grad;
  const auto& tensors = static_cast<const data::TensorDataset&>(*job.dataset).tensors();
  const double whole =
      at::mse_loss(at::addmm(job.bias, tensors[0], job.weight), tensors[1]).item<double>();
  EXPECT_NEAR(loss, whole, 1e-6 * whole);
  bool same = true;
  const Tree after = RandomState().state_dict();
  before.for_each_tensor([&](const std::string& path, const at::Tensor& tensor) {
    after.for_each_tensor([&](const std::string& other, const at::Tensor& value) {
      if (path == other) same = same && at::equal(tensor, value);
    });
  });
  EXPECT_TRUE(same);
}

TEST(TrainerTest, ResumeAtEveryStepEqualsTheUnbrokenRun) {
  constexpr int64_t kEpochs = 2;
  Regression whole;
  Trainer unbroken(whole.model(), *whole.optimizer, Regression::step(), {.epochs = kEpochs});
  unbroken.fit(*whole.training, whole.evaluation.get());
  for (int64_t stop_at = 0; stop_at <= kEpochs * kBatches; ++stop_at) {
    testing::TemporaryFolder folder;
    std::filesystem::path saved;
    {
      Regression first;
      Trainer trainer(first.model(), *first.optimizer, Regression::step(), {.epochs = kEpochs});
      trainer.add(std::make_shared<AtStep>(stop_at, [](Trainer& t) { t.stop(); }));
      trainer.fit(*first.training, first.evaluation.get());
      saved = trainer.save(folder.path());
    }
    Regression second;
    {
      at::NoGradGuard no_grad;
      second.weight.mul_(0);  // must come from the checkpoint
    }
    seed_everything(99);
    Trainer trainer(second.model(), *second.optimizer, Regression::step(), {.epochs = kEpochs});
    trainer.load(saved, *second.training);
    trainer.fit(*second.training, second.evaluation.get());
    EXPECT_TRUE(at::equal(whole.weight, second.weight)) << "stopped at step " << stop_at;
    EXPECT_TRUE(at::equal(whole.bias, second.bias)) << "stopped at step " << stop_at;
    EXPECT_EQ(unbroken.last_values(), trainer.last_values()) << "stopped at step " << stop_at;
    EXPECT_EQ(unbroken.progress().samples, trainer.progress().samples);
  }
}

TEST(TrainerTest, SignalEndsAfterTheStepAtHand) {
  Regression job;
  install_interrupt_handlers();
  Trainer trainer(job.model(), *job.optimizer, Regression::step(), {.epochs = 5});
  trainer.add(std::make_shared<AtStep>(3, [](Trainer&) { raise(SIGTERM); }));
  EXPECT_EQ(trainer.fit(*job.training), Outcome::interrupted);
  clear_interrupt();
  EXPECT_EQ(trainer.progress().step, 3);
  EXPECT_EQ(trainer.fit(*job.training), Outcome::completed);
  EXPECT_EQ(trainer.progress().step, 5 * kBatches);
}

TEST(TrainerTest, NanInAParameterNamesStepAndParameter) {
  Regression job;
  Trainer trainer(job.model(), *job.optimizer, Regression::step(), {.epochs = 1});
  trainer.add(std::make_shared<AtStep>(2, [&](Trainer&) {
    at::NoGradGuard no_grad;
    job.bias.fill_(std::numeric_limits<double>::quiet_NaN());
  }));
  try {
    trainer.fit(*job.training);
    FAIL() << "no error";
  } catch (const NonFiniteError& error) {
    EXPECT_THAT(error.what(), HasSubstr("step 3"));
    EXPECT_THAT(error.what(), HasSubstr("bias"));
  }
}

TEST(TrainerTest, InfiniteLossFromGoodParametersNamesTheGradientAndChangesNoWeight) {
  Regression job;
  const at::Tensor before = job.weight.detach().clone();
  EXPECT_THAT(
      fit_error(
          job,
          [](const nn::Model& model, const Tree& batch) {
            const auto output = model.forward(batch[0]).tensor();
            return StepOutput{output.mul(std::numeric_limits<float>::infinity()).pow(2).mean(), {}};
          }),
      ::testing::AllOf(HasSubstr("step 1"), HasSubstr("gradient is weight")));
  EXPECT_TRUE(at::equal(before, job.weight));
}

TEST(TrainerTest, LossWithoutAGraphOrOfTheWrongShapeIsRefused) {
  Regression job;
  EXPECT_THAT(fit_error(job,
                        [](const nn::Model&, const Tree&) {
                          return StepOutput{at::zeros({}), {}};
                        }),
              HasSubstr("no graph"));
  EXPECT_THAT(fit_error(job,
                        [&](const nn::Model&, const Tree&) {
                          return StepOutput{job.weight.mul(1), {}};
                        }),
              HasSubstr("0-dim"));
  EXPECT_THAT(fit_error(job, [](const nn::Model&, const Tree&) { return StepOutput{}; }),
              HasSubstr("undefined"));
}

TEST(TrainerTest, OptionsAreChecked) {
  Regression job;
  EXPECT_THROW(Trainer(job.model(), *job.optimizer, Regression::step(), {.epochs = -1}),
               ValueError);
  EXPECT_THROW(Trainer(job.model(), *job.optimizer, Regression::step(), {.log_every = 0}),
               ValueError);
  EXPECT_THROW(Trainer(job.model(), *job.optimizer, nullptr), ValueError);
  const auto frozen =
      nn::from_function([](const Tree& input) { return input; }, {{"w", at::zeros({1})}});
  EXPECT_THROW(Trainer(frozen, *job.optimizer, Regression::step()), ValueError);
}

TEST(TrainerTest, LogEventsComeEverySoManySteps) {
  class Logs : public Callback {
   public:
    void on_log(Trainer&, const Progress& progress, const Values& values) override {
      steps.push_back(progress.step);
      EXPECT_TRUE(std::isfinite(values.at("train_loss")));
      EXPECT_EQ(values.at("lr"), 1e-3);
    }
    std::vector<int64_t> steps;
  };
  Regression job;
  Trainer trainer(job.model(), *job.optimizer, Regression::step(), {.epochs = 1, .log_every = 3});
  const auto logs = std::make_shared<Logs>();
  trainer.add(logs);
  trainer.fit(*job.training);
  EXPECT_EQ(logs->steps, (std::vector<int64_t>{3, 6}));
}

TEST(TrainerTest, TwoCallbacksOfOneNameAreRefused) {
  Regression job;
  Trainer trainer(job.model(), *job.optimizer, Regression::step());
  trainer.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{}));
  EXPECT_THROW(trainer.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{})), ValueError);
  EXPECT_THROW(trainer.add(nullptr), ValueError);
}

}  // namespace
}  // namespace bellows::train
