// Precision, clipping and steps of several batches in the training loop.
#include "bellows/train/update.h"

#include <gmock/gmock.h>
#include <limits>
#include <new>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "bellows/amp/autocast.h"
#include "bellows/amp/master_weights.h"
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/core/error.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/device/seed.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/schedule.h"
#include "bellows/optim/sgd.h"
#include "bellows/train/checkpointing.h"
#include "bellows/train/learning_rate.h"
#include "bellows/train/trainer.h"
#include "tests/support/message_of.h"
#include "tests/support/process.h"

namespace bellows::train {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

constexpr int64_t kSamples = 50;

// Linear regression; sums of all samples' losses have no rounding to hide behind in float64.
struct Regression {
  explicit Regression(int64_t batch_size, at::ScalarType type = at::kDouble, double lr = 0.05) {
    seed_everything(3);
    weight = at::randn({4, 2}, type).requires_grad_();
    bias = at::zeros({2}, type).requires_grad_();
    inputs = at::randn({kSamples, 4}, type);
    const auto dataset = std::make_shared<data::TensorDataset>(
        std::vector<at::Tensor>{inputs, at::randn({kSamples, 2}, type)});
    training = data::make_loader(dataset, std::make_shared<data::RandomSampler>(kSamples, 5),
                                 {.batch_size = batch_size});
    optimizer = std::make_unique<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = lr});
  }
  NamedTensors parameters() const { return {{"weight", weight}, {"bias", bias}}; }
  nn::Model model() const {
    return nn::from_function(
        [weight = weight, bias = bias](const Tree& input) {
          return Tree(at::addmm(bias, input.tensor(), weight));
        },
        parameters());
  }
  static StepOutput step(const nn::Model& model, const Tree& batch) {
    return {at::mse_loss(model.forward(batch[0]).tensor(), batch[1].tensor()), {}};
  }
  Outcome fit(TrainerOptions options, StepFunction function = step) {
    Trainer trainer(model(), *optimizer, std::move(function), std::move(options));
    const Outcome outcome = trainer.fit(*training);
    progress = trainer.progress();
    values = trainer.last_values();
    return outcome;
  }

  at::Tensor weight, bias, inputs;
  std::unique_ptr<data::Loader> training;
  std::unique_ptr<optim::Optimizer> optimizer;
  Progress progress;
  Values values;
};

TEST(UpdateTest, AStepOfSeveralBatchesIsOneOfThemAllJoined) {
  Regression whole(12);
  whole.fit({.epochs = 3});
  for (const int64_t accumulate : {2, 3, 4, 6, 12}) {
    Regression parts(12 / accumulate);  // the last step has 2 samples, so not all parts
    parts.fit({.epochs = 3, .accumulate = accumulate});
    EXPECT_TRUE(at::allclose(parts.weight, whole.weight, 1e-12, 1e-12)) << accumulate;
    EXPECT_EQ(parts.progress.step, 3 * 5);
    EXPECT_EQ(parts.progress.samples, 3 * kSamples);
    EXPECT_NEAR(parts.values.at("train_loss"), whole.values.at("train_loss"), 1e-12);
  }
}

TEST(UpdateTest, LossesOfUnlikeWeightAreNoMeanOfMeans) {
  // As of token counts: rows whose first input is above 0 count.
  const auto step = [](const nn::Model& model, const Tree& batch) {
    const at::Tensor counts = batch[0].tensor().select(1, 0).gt(0).to(at::kDouble);
    const double weight = counts.sum().item<double>();
    const at::Tensor errors =
        (model.forward(batch[0]).tensor() - batch[1].tensor()).pow(2).sum(1).mul(counts);
    return StepOutput{
        .loss = errors.sum() / std::max(weight, 1.0), .metrics = {}, .weight = weight};
  };
  Regression whole(10), parts(2);
  whole.fit({.epochs = 3}, step);
  parts.fit({.epochs = 3, .accumulate = 5}, step);
  EXPECT_TRUE(at::allclose(parts.weight, whole.weight, 1e-12, 1e-12));
}

TEST(UpdateTest, ASkippedStepMovesNeitherScheduleNorCount) {
  // 10 batches, of which 3 give infinite gradients.
  const auto spoiled = [](std::vector<int> bad) {
    return [bad = std::move(bad), batch = 0](const nn::Model& model, const Tree& data) mutable {
      StepOutput output = Regression::step(model, data);
      if (std::ranges::count(bad, batch++) > 0) {
        output.loss = output.loss.mul(std::numeric_limits<double>::infinity());
      }
      return output;
    };
  };
  Regression job(5, at::kFloat);
  const auto rates = std::make_shared<optim::LinearLR>(
      optim::LinearLROptions{.start_factor = 1, .end_factor = 0, .total_iters = 20});
  TrainerOptions options{.epochs = 1};
  options.update.precision = amp::Precision::fp16;
  options.update.scaler.init_scale = 128;  // the usual one overflows at first
  Trainer trainer(job.model(), *job.optimizer, spoiled({0, 4, 5}), options);
  trainer.add(std::make_shared<LearningRate>(*job.optimizer, rates));
  trainer.fit(*job.training);
  EXPECT_EQ(trainer.progress().step, 7);
  EXPECT_EQ(trainer.progress().samples, kSamples);
  EXPECT_DOUBLE_EQ(job.optimizer->lr(0), 0.05 * (1 - 7.0 / 20));
  EXPECT_TRUE(std::isfinite(job.weight.sum().item<float>()));

  Regression never(5, at::kFloat);
  options.update.scaler.max_consecutive_skips = 2;
  Trainer stopped(never.model(), *never.optimizer, spoiled({2, 3, 4, 5, 6}), options);
  EXPECT_THAT(message_of<NonFiniteError>([&] { stopped.fit(*never.training); }),
              HasSubstr("weight"));
  EXPECT_EQ(stopped.progress().step, 2);
}

TEST(UpdateTest, EveryPrecisionLearns) {
  for (const auto precision : {amp::Precision::fp32, amp::Precision::bf16, amp::Precision::fp16,
                               amp::Precision::bf16_true}) {
    Regression job(10, at::kFloat);
    const NamedTensors parameters = job.parameters();
    if (precision == amp::Precision::bf16_true) {
      amp::convert(parameters, at::kBFloat16);
      job.optimizer = std::make_unique<amp::MasterWeights>(parameters, [](NamedTensors masters) {
        return std::make_unique<optim::AdamW>(std::move(masters), optim::AdamWOptions{.lr = 0.05});
      });
    }
    at::ScalarType seen = at::kDouble;
    const auto step = [&](const nn::Model& model, const Tree& batch) {
      const at::Tensor output = model.forward(batch[0]).tensor();
      seen = output.scalar_type();
      return StepOutput{at::mse_loss(output.to(at::kFloat), batch[1].tensor().to(at::kFloat)), {}};
    };
    TrainerOptions options{.epochs = 1};
    options.update.precision = precision;
    job.fit(options, step);
    const double first = job.values.at("train_loss");
    options.epochs = 30;
    job.fit(options, step);
    const std::string name(amp::precision_name(precision));
    EXPECT_LT(job.values.at("train_loss"), 0.5 * first) << name;
    EXPECT_EQ(seen, precision == amp::Precision::fp32   ? at::kFloat
                    : precision == amp::Precision::fp16 ? at::kHalf
                                                        : at::kBFloat16)
        << name;
    EXPECT_FALSE(amp::is_autocast_enabled(c10::kCPU));
  }
}

TEST(UpdateTest, TheScaleIsPartOfACheckpoint) {
  const TemporaryFolder folder;
  TrainerOptions options{.epochs = 4};
  options.update.precision = amp::Precision::fp16;
  options.update.scaler.init_scale = 128;
  options.update.scaler.growth_interval = 3;
  const auto run = [&](Regression& job, int64_t from) {
    Trainer trainer(job.model(), *job.optimizer, Regression::step, options);
    trainer.add(std::make_shared<Checkpointing>(
        CheckpointingOptions{.root = folder.path(), .every_steps = 1, .keep = 100}));
    if (from > 0) trainer.load(checkpoint::directory_of(folder.path(), from), *job.training);
    trainer.fit(*job.training);
    return checkpoint::directory_of(folder.path(), trainer.progress().step);
  };
  Regression unbroken(5, at::kFloat);
  const auto last = run(unbroken, 0);
  for (const int64_t step : {1, 7, 20, 30}) {
    Regression resumed(5, at::kFloat);
    EXPECT_EQ(run(resumed, step), last);
    EXPECT_TRUE(at::equal(resumed.weight, unbroken.weight)) << step;
  }
}

TEST(UpdateTest, ClippingBoundsWhatTheOptimizerSees) {
  Regression job(10);
  job.optimizer = std::make_unique<optim::SGD>(job.parameters(), optim::SGDOptions{.lr = 1.0});
  const at::Tensor before = job.weight.detach().clone(), bias = job.bias.detach().clone();
  TrainerOptions options{.epochs = 1};
  options.update.clip_norm = 1e-3;
  job.fit(options);
  const double moved = std::hypot((job.weight - before).norm().item<double>(),
                                  (job.bias - bias).norm().item<double>());
  EXPECT_GT(moved, 0.5e-3);
  EXPECT_LE(moved, 5 * 1e-3 * (1 + 1e-9));

  Regression each(10);
  each.optimizer = std::make_unique<optim::SGD>(each.parameters(), optim::SGDOptions{.lr = 1.0});
  options.update = {.clip_value = 1e-4};
  each.fit(options);
  EXPECT_LE((each.weight - before).abs().max().item<double>(), 5 * 1e-4 * (1 + 1e-9));
  EXPECT_GT((each.weight - before).abs().min().item<double>(), 1e-6);
}

TEST(UpdateTest, OutOfMemoryIsAnsweredByPartsWithTheSameGradients) {
  Regression whole(16), limited(16);
  whole.fit({.epochs = 3});
  std::vector<int64_t> sizes;
  const auto step = [&](const nn::Model& model, const Tree& batch) {
    const int64_t samples = batch[0].tensor().size(0);
    sizes.push_back(samples);
    StepOutput output = Regression::step(model, batch);
    if (samples > 5) throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "planted");
    return output;
  };
  limited.fit({.epochs = 3}, step);
  EXPECT_TRUE(at::allclose(limited.weight, whole.weight, 1e-12, 1e-12));
  EXPECT_EQ(limited.progress.step, whole.progress.step);
  EXPECT_NEAR(limited.values.at("train_loss"), whole.values.at("train_loss"), 1e-12);
  // 16 fails, 8 fails, then four parts of 4 for good; the last batch of an epoch has 2 samples.
  EXPECT_THAT(std::vector<int64_t>(sizes.begin(), sizes.begin() + 7),
              ::testing::ElementsAre(16, 8, 4, 4, 4, 4, 4));

  Regression off(16);
  EXPECT_THROW(off.fit({.epochs = 1, .recover = false}, step), c10::OutOfMemoryError);
  Regression hopeless(16);
  EXPECT_THROW(
      hopeless.fit({.epochs = 1},
                   [](const nn::Model&, const Tree&) -> StepOutput { throw std::bad_alloc(); }),
      std::bad_alloc);
}

TEST(UpdateTest, AStepDoneAnewHasTheRandomNumbersAndBuffersOfTheFirstAttempt) {
  // Dropout-like noise and a running mean, as BatchNorm has it; the first attempt fails late.
  const auto run = [](bool fails) {
    Regression job(10);
    const at::Tensor mean = at::zeros({4}, at::kDouble);
    const nn::Model model = nn::from_function(
        [weight = job.weight, bias = job.bias](const Tree& input) {
          return Tree(at::addmm(bias, input.tensor(), weight));
        },
        job.parameters(), {{"mean", mean}});
    int calls = 0;
    const auto step = [&](const nn::Model& m, const Tree& batch) {
      const at::Tensor& input = batch[0].tensor();
      mean.mul_(0.9).add_(input.sum(0), 0.1);
      const at::Tensor noise = at::randn({1}, at::kDouble);
      const StepOutput output{
          at::mse_loss(m.forward(Tree(input.mul(noise))).tensor(), batch[1].tensor()), {}};
      if (fails && ++calls == 1) throw std::bad_alloc();
      return output;
    };
    Trainer trainer(model, *job.optimizer, step, {.epochs = 1, .parts = fails ? 1 : 2});
    trainer.fit(*job.training);
    return std::pair(job.weight.detach().clone(), mean);
  };
  const auto [weight, mean] = run(true);
  const auto [expected_weight, expected_mean] = run(false);
  EXPECT_TRUE(at::equal(weight, expected_weight));
  EXPECT_TRUE(at::equal(mean, expected_mean));
}

TEST(UpdateTest, AnEvaluationTooLargeIsDoneInParts) {
  Regression job(10);
  Trainer trainer(job.model(), *job.optimizer, [](const nn::Model& model, const Tree& batch) {
    if (!model.is_training() && batch[0].tensor().size(0) > 3) throw std::bad_alloc();
    return Regression::step(model, batch);
  });
  Trainer plain(job.model(), *job.optimizer, Regression::step);
  EXPECT_NEAR(trainer.evaluate(*job.training)->at("loss"),
              plain.evaluate(*job.training)->at("loss"), 1e-12);
}

TEST(UpdateTest, SettingsWithoutASenseAreRefused) {
  Regression job(10);
  EXPECT_THAT(message_of<ValueError>([&] { job.fit({.accumulate = 0}); }), HasSubstr("accumulate"));
  EXPECT_THAT(message_of<ValueError>([&] { job.fit({.update = {.clip_norm = -1}}); }),
              HasSubstr("clip_norm"));
  EXPECT_THAT(message_of<ValueError>(
                  [&] { job.fit({.update = {.precision = amp::Precision::bf16_true}}); }),
              HasSubstr("MasterWeights"));
}

}  // namespace
}  // namespace bellows::train
