#include "bellows/train/early_stopping.h"

#include <cmath>
#include <gmock/gmock.h>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/optim/sgd.h"
#include "bellows/train/trainer.h"

namespace bellows::train {
namespace {

/// A run whose evaluation loss follows a script; gives the epochs it trained.
int64_t epochs_with(const std::vector<double>& losses, EarlyStoppingOptions options) {
  const at::Tensor weight = at::ones({1}).requires_grad_();
  optim::SGD optimizer({{"weight", weight}}, {.lr = 0.0});
  const auto dataset =
      std::make_shared<data::TensorDataset>(std::vector<at::Tensor>{at::ones({1})});
  const auto sampler = std::make_shared<data::SequentialSampler>(1);
  const auto training = data::make_loader(dataset, sampler, {});
  const auto evaluation = data::make_loader(dataset, sampler, {});
  size_t epoch = 0;
  const StepFunction step = [&](const nn::Model& model, const Tree&) {
    if (model.is_training()) return StepOutput{weight.sum(), {}};
    return StepOutput{at::full({}, losses.at(epoch++), at::kDouble), {}};
  };
  Trainer trainer(nn::from_function([](const Tree& input) { return input; }, {{"weight", weight}}),
                  optimizer, step, {.epochs = static_cast<int64_t>(losses.size())});
  trainer.add(std::make_shared<EarlyStopping>(options));
  trainer.fit(*training, evaluation.get());
  return trainer.progress().epoch;
}

TEST(EarlyStoppingTest, StopsAfterPatienceEpochsWithoutImprovement) {
  EXPECT_EQ(epochs_with({3, 2, 2, 2, 1}, {.patience = 2}), 4);
  EXPECT_EQ(epochs_with({3, 2, 2, 1, 1}, {.patience = 2}), 5);
}

TEST(EarlyStoppingTest, SmallChangesDoNotCount) {
  EXPECT_EQ(epochs_with({3, 2.95, 2.91, 1}, {.patience = 2, .min_delta = 0.1}), 3);
}

TEST(EarlyStoppingTest, NanIsNeverAnImprovement) {
  EXPECT_EQ(epochs_with({std::nan(""), std::nan(""), 1}, {.patience = 2}), 2);
}

TEST(EarlyStoppingTest, AccuracyIsBetterWhenLarger) {
  EXPECT_TRUE(better("test_accuracy", 0.9, 0.8));
  EXPECT_FALSE(better("test_accuracy", 0.8, 0.9));
  EXPECT_TRUE(better("test_loss", 0.8, 0.9));
  EXPECT_FALSE(better("test_loss", std::nan(""), 0.9));
}

TEST(EarlyStoppingTest, MetricThatIsNotReportedIsNamedWithThoseThatAre) {
  try {
    epochs_with({1}, {.metric = "test_acuracy"});
    FAIL() << "no error";
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("it reports test_loss, train_loss"));
  }
}

TEST(EarlyStoppingTest, OptionsAreChecked) {
  EXPECT_THROW(EarlyStopping({.patience = 0}), ValueError);
  EXPECT_THROW(EarlyStopping({.min_delta = -1}), ValueError);
  EXPECT_THROW(EarlyStopping({.min_delta = std::nan("")}), ValueError);
}

}  // namespace
}  // namespace bellows::train
