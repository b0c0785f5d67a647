#include "bellows/train/checkpointing.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/optim/sgd.h"
#include "bellows/train/trainer.h"
#include "tests/support/process.h"

namespace bellows::train {
namespace {

/// Trains on ten samples, one a batch; the evaluation loss of epoch e is losses[e].
class CheckpointingTest : public ::testing::Test {
 protected:
  std::vector<int64_t> steps_after(const std::vector<double>& losses,
                                   CheckpointingOptions options) {
    const at::Tensor weight = at::ones({1}).requires_grad_();
    optim::SGD optimizer({{"weight", weight}}, {.lr = 0.0});
    const auto dataset =
        std::make_shared<data::TensorDataset>(std::vector<at::Tensor>{at::ones({10})});
    const auto training =
        data::make_loader(dataset, std::make_shared<data::SequentialSampler>(10), {});
    const auto evaluation = data::make_loader(
        dataset, std::make_shared<data::SequentialSampler>(10), {.batch_size = 10});
    size_t epoch = 0;
    const StepFunction step = [&](const nn::Model& model, const Tree&) {
      if (model.is_training()) return StepOutput{weight.sum(), {}};
      return StepOutput{at::full({}, losses.at(epoch++), at::kDouble), {}};
    };
    Trainer trainer(
        nn::from_function([](const Tree& input) { return input; }, {{"weight", weight}}), optimizer,
        step, {.epochs = static_cast<int64_t>(losses.size())});
    std::filesystem::remove_all(folder_.path());
    options.root = folder_.path();
    trainer.add(std::make_shared<Checkpointing>(options));
    trainer.fit(*training, evaluation.get());
    std::vector<int64_t> steps;
    for (const auto& directory : checkpoint::list(folder_.path()))
      steps.push_back(checkpoint::step_of(directory));
    return steps;
  }
  int64_t step_of_link(const std::string& name) { return checkpoint::step_of(folder_ / name); }
  testing::TemporaryFolder folder_;
};

TEST_F(CheckpointingTest, KeepsTheLastOnesAndTheBest) {
  EXPECT_EQ(steps_after({3, 1, 2, 2.5}, {.keep = 1}), (std::vector<int64_t>{20, 40}));
  EXPECT_EQ(step_of_link("best"), 20);
  EXPECT_EQ(step_of_link("last"), 40);
}

TEST_F(CheckpointingTest, KeepsSeveralOfTheBest) {
  for (const bool asynchronous : {false, true}) {
    EXPECT_EQ(steps_after({3, 1, 2, 2.5, 4, 5},
                          {.keep = 1, .keep_best = 2, .asynchronous = asynchronous}),
              (std::vector<int64_t>{20, 30, 60}));
    EXPECT_EQ(step_of_link("best"), 20);
    EXPECT_EQ(step_of_link("last"), 60);
  }
}

TEST_F(CheckpointingTest, DirectionSaysWhichValuesAreBetter) {
  steps_after({1, 3, 2}, {.direction = Direction::higher});
  EXPECT_EQ(step_of_link("best"), 20);
  steps_after({1, 3, 2}, {.direction = Direction::lower});
  EXPECT_EQ(step_of_link("best"), 10);
}

TEST_F(CheckpointingTest, BestOfAnEarlierVersionsStateIsTheLinkedOne) {
  steps_after({1, 3}, {});
  Checkpointing checkpointing({.root = folder_.path()});
  checkpointing.load_state_dict(Tree::Dict{{"any", true}, {"best", 1.0}});
  const Tree best = checkpointing.state_dict().at("best")[0];
  EXPECT_EQ(best.at("step").integer(), 10);
  EXPECT_EQ(best.at("value").number(), 1.0);
  checkpointing.load_state_dict(Tree::Dict{{"any", false}, {"best", 0.0}});
  EXPECT_TRUE(checkpointing.state_dict().at("best").list().empty());
}

/// Every sync of a file fails.
class FullDisk : public FileSystem {
 public:
  int fsync(int) override {
    errno = ENOSPC;
    return -1;
  }
};

TEST_F(CheckpointingTest, ErrorInTheBackgroundEndsTheRun) {
  FullDisk full;
  const ScopedFileSystem scope(full);
  EXPECT_THROW(steps_after({1, 2, 3}, {.asynchronous = true}), FileError);
}

TEST_F(CheckpointingTest, SavesEverySoManySteps) {
  EXPECT_EQ(steps_after({1, 2}, {.every_steps = 4, .keep = 100}),
            (std::vector<int64_t>{4, 8, 10, 12, 16, 20}));
}

TEST_F(CheckpointingTest, FirstEpochCanBeTheBest) {
  EXPECT_EQ(steps_after({1, 3, 2}, {.metric = "test_loss"}), (std::vector<int64_t>{10, 20, 30}));
  EXPECT_EQ(step_of_link("best"), 10);
}

TEST_F(CheckpointingTest, OptionsAreChecked) {
  EXPECT_THROW(Checkpointing({.every_steps = -1}), ValueError);
  EXPECT_THROW(Checkpointing({.keep = 0}), ValueError);
  EXPECT_THROW(Checkpointing({.keep_best = 0}), ValueError);
}

}  // namespace
}  // namespace bellows::train
