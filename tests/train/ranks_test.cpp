// Training over several ranks, here threads of this process.
#include "bellows/train/ranks.h"

#include <gmock/gmock.h>
#include <limits>
#include <mutex>

#include <ATen/ops/addmm.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/core/error.h"
#include "bellows/data/distributed_sampler.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/device/seed.h"
#include "bellows/optim/adamw.h"
#include "bellows/parallel/init.h"
#include "bellows/train/checkpointing.h"
#include "bellows/train/sharded_checkpoint.h"
#include "bellows/train/trainer.h"
#include "tests/support/message_of.h"
#include "tests/support/process.h"

namespace bellows::train {
namespace {

using bellows::testing::message_of;
using bellows::testing::TemporaryFolder;
using parallel::Group;
using ::testing::HasSubstr;

constexpr int64_t kSamples = 48, kGlobalBatch = 12;

at::Tensor drawn(at::IntArrayRef sizes) {
  return at::randn(sizes, at::TensorOptions(at::kDouble));
}

// The same data and weights for all ranks.
struct Problem {
  Problem() {
    seed_everything(3);
    inputs = drawn({kSamples, 4});
    targets = drawn({kSamples, 2});
    weight = drawn({4, 2});
  }
  at::Tensor inputs, targets, weight;
};

struct Rank {
  Rank(const Problem& problem, const Group& group, data::Uneven uneven = data::Uneven::pad,
       int64_t samples = kSamples)
      : weight(problem.weight.clone().requires_grad_()),
        bias(at::zeros({2}, at::kDouble).requires_grad_()) {
    const auto dataset = std::make_shared<data::TensorDataset>(std::vector<at::Tensor>{
        problem.inputs.narrow(0, 0, samples), problem.targets.narrow(0, 0, samples)});
    data::DistributedOptions ranks{
        .rank = group.rank(), .world_size = group.size(), .uneven = uneven};
    training = data::make_loader(dataset,
                                 std::make_shared<data::DistributedSampler>(
                                     std::make_shared<data::RandomSampler>(samples, 5), ranks),
                                 {.batch_size = kGlobalBatch / group.size()});
    ranks.uneven = data::Uneven::keep;
    evaluation = data::make_loader(dataset,
                                   std::make_shared<data::DistributedSampler>(
                                       std::make_shared<data::SequentialSampler>(samples), ranks),
                                   {.batch_size = 5});
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
  static StepOutput step(const nn::Model& model, const Tree& batch) {
    return {at::mse_loss(model.forward(batch[0]).tensor(), batch[1].tensor()), {}};
  }

  at::Tensor weight, bias;
  std::unique_ptr<data::Loader> training, evaluation;
  std::unique_ptr<optim::Optimizer> optimizer;
};

struct Result {
  at::Tensor weight;
  Values values;
  Progress progress;
  Outcome outcome = Outcome::completed;
};

// Trains on so many ranks; what each of them ends with.
std::vector<Result> train(int64_t ranks, const std::function<void(Trainer&, Rank&)>& before = {},
                          TrainerOptions options = {.epochs = 3},
                          data::Uneven uneven = data::Uneven::pad, int64_t samples = kSamples) {
  const Problem problem;
  std::vector<Result> results(static_cast<size_t>(ranks));
  parallel::run_threads(ranks, [&](Group group) {
    Rank rank(problem, group, uneven, samples);
    TrainerOptions own = options;
    own.group = group;
    Trainer trainer(rank.model(), *rank.optimizer, Rank::step, own);
    if (before) before(trainer, rank);
    Result& result = results[static_cast<size_t>(group.rank())];
    result.outcome = trainer.fit(*rank.training, rank.evaluation.get());
    result.weight = rank.weight.detach().clone();
    result.values = trainer.last_values();
    result.progress = trainer.progress();
  });
  return results;
}

TEST(RanksTest, AnyNumberOfRanksIsOneProcessOnTheJoinedBatch) {
  const Result alone = train(1).front();
  for (const int64_t ranks : {2, 3, 4}) {
    for (const Result& result : train(ranks)) {
      EXPECT_TRUE(at::allclose(result.weight, alone.weight, 1e-12, 1e-12)) << ranks;
      EXPECT_EQ(result.progress.step, alone.progress.step);
      EXPECT_EQ(result.progress.samples, alone.progress.samples);
      for (const auto& [name, value] : alone.values)
        EXPECT_NEAR(result.values.at(name), value, 1e-12 * value) << name;
    }
  }
}

TEST(RanksTest, EvaluationCountsEachSampleOnceWhereTheyDoNotComeOutEven) {
  const Problem problem;
  Values expected;
  for (const int64_t ranks : {1, 3}) {
    parallel::run_threads(ranks, [&](Group group) {
      Rank rank(problem, group, data::Uneven::pad, 47);
      TrainerOptions options;
      options.group = group;
      Trainer trainer(rank.model(), *rank.optimizer, Rank::step, options);
      const Values values = *trainer.evaluate(*rank.evaluation);
      if (ranks == 1) {
        expected = values;
      } else {
        EXPECT_NEAR(values.at("loss"), expected.at("loss"), 1e-12);
      }
    });
  }
}

TEST(RanksTest, ARankWhoseDataEndEarlierTakesPartUntilAllHaveEnded) {
  // 43 samples on two ranks: 22 and 21, in batches of 6 it is 4 batches each; 37: 19 and 18, 4
  // and 3.
  const std::vector<Result> results = train(2, {}, {.epochs = 3}, data::Uneven::keep, 37);
  EXPECT_TRUE(at::equal(results[0].weight, results[1].weight));
  for (const Result& result : results) {
    EXPECT_EQ(result.progress.samples, 3 * 37);
    EXPECT_EQ(result.progress.step, 3 * 4);
  }
}

TEST(RanksTest, StepsOfUnevenSharesAreThoseOfTheJoinedBatch) {
  // The last step has one sample: only one rank has any.
  const Result alone = train(1, {}, {.epochs = 3}, data::Uneven::keep, 37).front();
  for (const int64_t ranks : {2, 3, 4}) {
    for (const int64_t accumulate : {1, 2}) {
      TrainerOptions options{.epochs = 3};
      options.accumulate = accumulate;
      const Result expected =
          accumulate == 1 ? alone : train(1, {}, options, data::Uneven::keep, 37).front();
      for (const Result& result : train(ranks, {}, options, data::Uneven::keep, 37)) {
        EXPECT_TRUE(at::allclose(result.weight, expected.weight, 1e-12, 1e-12))
            << ranks << " ranks, accumulate " << accumulate;
        EXPECT_EQ(result.progress.step, expected.progress.step);
        EXPECT_EQ(result.progress.samples, expected.progress.samples);
      }
    }
  }
}

TEST(RanksTest, WhereOneRankOverflowsAllSkip) {
  const Problem problem;
  std::vector<at::Tensor> weights(2);
  parallel::run_threads(2, [&](Group group) {
    Rank rank(problem, group);
    int batch = 0;
    const auto step = [&](const nn::Model& model, const Tree& data) {
      StepOutput output = Rank::step(model, data);
      if (group.rank() == 1 && batch++ == 3) {
        output.loss = output.loss.mul(std::numeric_limits<double>::infinity());
      }
      return output;
    };
    TrainerOptions options{.epochs = 3};
    options.group = group;
    options.update.precision = amp::Precision::fp16;
    options.update.scaler.init_scale = 128;
    Trainer trainer(rank.model(), *rank.optimizer, step, options);
    trainer.fit(*rank.training);
    EXPECT_EQ(trainer.progress().step, 3 * 4 - 1);
    weights[static_cast<size_t>(group.rank())] = rank.weight.detach().clone();
  });
  EXPECT_TRUE(at::equal(weights[0], weights[1]));
}

TEST(RanksTest, ARankWithoutAnyDataIsNamed) {
  EXPECT_THAT(message_of<Error>([] { train(2, {}, {.epochs = 1}, data::Uneven::keep, 1); }),
              HasSubstr("rank 1 had no batch of training data"));
}

/// Does something on one rank at one step.
class AtStep : public Callback {
 public:
  AtStep(int64_t rank, int64_t step, std::function<void(Trainer&)> action)
      : rank_(rank), step_(step), action_(std::move(action)) {}
  void on_step(Trainer& trainer, const Progress& progress) override {
    if (trainer.group().rank() == rank_ && progress.step == step_) action_(trainer);
  }

 private:
  int64_t rank_, step_;
  std::function<void(Trainer&)> action_;
};

TEST(RanksTest, StopOnOneRankEndsAllAfterTheSameStep) {
  const auto stop = [](Trainer& trainer, Rank&) {
    trainer.add(std::make_shared<AtStep>(1, 2, [](Trainer& t) { t.stop(); }));
  };
  for (const Result& result : train(3, stop, {.epochs = 50})) {
    EXPECT_EQ(result.outcome, Outcome::stopped);
    EXPECT_EQ(result.progress.step, 3);
  }
}

TEST(RanksTest, OneCheckpointOfAllRanksGoesOnOnAnyNumberOfThem) {
  const TemporaryFolder folder;
  const Result unbroken = train(2).front();
  const auto save = [&](Trainer& trainer, Rank&) {
    trainer.add(std::make_shared<Checkpointing>(
        CheckpointingOptions{.root = folder.path(), .every_steps = 1, .keep = 100}));
  };
  EXPECT_TRUE(at::equal(train(2, save).front().weight, unbroken.weight));
  const TemporaryFolder shards;
  const auto save_shards = [&](Trainer& trainer, Rank&) {
    trainer.add(std::make_shared<Checkpointing>(
        CheckpointingOptions{.root = shards.path(), .every_steps = 1, .keep = 100}));
  };
  TrainerOptions sharded{.epochs = 3};
  sharded.sharded_checkpoints = true;
  EXPECT_TRUE(at::equal(train(2, save_shards, sharded).front().weight, unbroken.weight));
  EXPECT_TRUE(std::filesystem::exists(checkpoint::directory_of(shards.path(), 11) /
                                      "model-00002-of-00002.safetensors"));
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t step : {1, 4, 6, 11}) {
      const auto load = [&](Trainer& trainer, Rank& rank) {
        const auto& root = step < 5 ? folder : shards;
        trainer.load(checkpoint::directory_of(root.path(), step), *rank.training);
      };
      for (const Result& result : train(ranks, load)) {
        if (ranks == 2) {
          EXPECT_TRUE(at::equal(result.weight, unbroken.weight)) << step;
        } else {
          EXPECT_TRUE(at::allclose(result.weight, unbroken.weight, 1e-12, 1e-12)) << step;
        }
        EXPECT_EQ(result.progress.samples, unbroken.progress.samples);
        EXPECT_NEAR(result.values.at("train_loss"), unbroken.values.at("train_loss"), 1e-12);
      }
    }
  }
}

TEST(RanksTest, AllRanksLearnThatASaveFailed) {
  const auto save = [](Trainer& trainer, Rank&) {
    trainer.add(std::make_shared<Checkpointing>(
        CheckpointingOptions{.root = "/dev/null/run", .every_steps = 2}));
  };
  std::mutex mutex;
  std::vector<std::string> messages;
  const Problem problem;
  parallel::run_threads(2, [&](Group group) {
    Rank rank(problem, group);
    TrainerOptions options;
    options.group = group;
    Trainer trainer(rank.model(), *rank.optimizer, Rank::step, options);
    save(trainer, rank);
    const std::string message = message_of<EnvironmentError>([&] { trainer.fit(*rank.training); });
    const std::lock_guard lock(mutex);
    messages.push_back(message);
  });
  ASSERT_EQ(messages.size(), 2);
  for (const std::string& message : messages)
    EXPECT_THAT(message, HasSubstr("/dev/null: mkdir: Not a directory"));
}

TEST(RanksTest, AFaultOnOneRankFailsASaveOfAllAndTheOneBeforeStays) {
  const TemporaryFolder folder;
  const auto weights = [](int64_t size) {
    const NamedTensors all{{"weight", at::ones({size, 100'000}).requires_grad_()}};
    return nn::from_function([](const Tree& input) { return input; }, all);
  };
  parallel::run_threads(3, [&](Group group) {
    const auto saved = save_sharded(group, folder.path(), 1, weights(3), {});
    checkpoint::verify(saved);
    EXPECT_TRUE(std::filesystem::exists(saved / "model-00003-of-00003.safetensors"));
    EXPECT_THAT(message_of<ValueError>([&] {
                  save_sharded(group, folder.path(), 2, weights(group.rank() == 1 ? 4 : 3), {});
                }),
                HasSubstr(group.rank() == 1 ? "other names or shapes than on rank 0"
                                            : "rank 1: a sharded checkpoint"));
    EXPECT_EQ(checkpoint::latest(folder.path()), saved);
    // The same step once more, now whole; what the failed save left is gone.
    EXPECT_EQ(save_sharded(group, folder.path(), 2, weights(3), {}),
              checkpoint::directory_of(folder.path(), 2));
  });
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    ++entries;
  }
  EXPECT_EQ(entries, 3);  // two steps and `last`
}

TEST(RanksTest, WorkOfTheFirstRankIsKnownToAll) {
  parallel::run_threads(3, [](Group group) {
    EXPECT_EQ(on_first_rank(group, [&] { return Tree(group.rank() + 7); }).integer(), 7);
    EXPECT_THAT(message_of<ValueError>([&] {
                  on_first_rank(group, []() -> Tree { throw ValueError("no such name"); });
                }),
                HasSubstr("no such name"));
    EXPECT_THAT(message_of<EnvironmentError>([&] {
                  on_all_ranks(group, [&] {
                    if (group.rank() == 2) throw EnvironmentError("no disk here");
                  });
                }),
                HasSubstr(group.rank() == 2 ? "no disk here" : "rank 2: no disk here"));
  });
}

}  // namespace
}  // namespace bellows::train
