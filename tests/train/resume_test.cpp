// A whole run (dropout, augmentation, schedule, early stopping, metrics, TensorBoard, checkpoints),
// stopped or killed at every batch and resumed with another number of workers, ends with the files
// of the unbroken run.
#include <cstring>
#include <fstream>

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "bellows/core/file.h"
#include "bellows/data/augment.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/data/transforms.h"
#include "bellows/nn/from_module.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/schedule.h"
#include "bellows/train/checkpointing.h"
#include "bellows/train/early_stopping.h"
#include "bellows/train/learning_rate.h"
#include "bellows/train/metrics_file.h"
#include "bellows/train/run_directory.h"
#include "bellows/train/tensorboard.h"
#include "bellows/train/trainer.h"
#include "tests/support/process.h"

namespace bellows::train {
namespace {

namespace fs = std::filesystem;
namespace tnn = torch::nn;

constexpr int64_t kSamples = 45, kBatch = 8, kBatches = 6, kEpochs = 2;

struct Killed {};

/// Stops the run, or ends it without a word, after a step.
class EndAt : public Callback {
 public:
  EndAt(int64_t step, bool kill) : step_(step), kill_(kill) {}
  void on_start(Trainer& trainer, const Progress& progress) override { end(trainer, progress); }
  void on_step(Trainer& trainer, const Progress& progress) override { end(trainer, progress); }

 private:
  void end(Trainer& trainer, const Progress& progress) const {
    if (progress.step != step_) return;
    if (kill_) throw Killed();
    trainer.stop();
  }
  int64_t step_;
  bool kill_;
};

at::Tensor scaled(const at::Tensor& image, data::Random&) {
  return data::to_float(image);
}

/// A run as `bellows train --resume auto` makes it, from nothing but its folder.
void run(const fs::path& folder, int64_t workers, int64_t end_at = -1, bool kill = false) {
  const RunDirectory directory(folder, {.resume = "auto"});
  const auto candidates = directory.resume_candidates();
  seed_everything(3);
  const at::Tensor images = at::randint(256, {kSamples, 1, 8, 8}, at::kByte);
  const auto dataset = std::make_shared<data::TensorDataset>(
      std::vector<at::Tensor>{images, at::arange(kSamples).remainder(3)});
  const auto training = data::make_loader(
      data::map(dataset, data::on_image(data::compose({data::random_crop(8, 8, 2),
                                                       data::random_horizontal_flip(), scaled}))),
      std::make_shared<data::RandomSampler>(kSamples, 5),
      {.batch_size = kBatch, .workers = workers, .seed = 7});
  const auto evaluation =
      data::make_loader(data::map(dataset, data::on_image(scaled)),
                        std::make_shared<data::SequentialSampler>(kSamples), {.batch_size = 20});
  seed_everything(static_cast<uint64_t>(end_at + 100));  // must come from the checkpoint
  if (candidates.empty()) seed_everything(4);
  tnn::Sequential net(tnn::Flatten(), tnn::Linear(64, 12), tnn::Dropout(0.3),
                      tnn::LayerNorm(tnn::LayerNormOptions({12})), tnn::Linear(12, 3));
  const nn::Model model = nn::from_module(net);
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-2});
  Trainer trainer(model, optimizer, classification(), {.epochs = kEpochs, .log_every = 2});
  trainer.add(std::make_shared<MetricsFile>(folder / "metrics.jsonl"));
  trainer.add(std::make_shared<TensorBoardLogger>(folder));
  trainer.add(std::make_shared<LearningRate>(
      optimizer, std::make_shared<optim::LinearLR>(
                     optim::LinearLROptions{.total_iters = kEpochs * kBatches})));
  trainer.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 5}));
  trainer.add(std::make_shared<Checkpointing>(
      CheckpointingOptions{.root = folder / "checkpoints", .every_steps = 2, .keep = 100}));
  trainer.add(std::make_shared<EndAt>(end_at, kill));
  if (!candidates.empty()) trainer.load(candidates.front(), *training);
  trainer.fit(*training, evaluation.get());
}

/// Metrics without the values that depend on time.
std::vector<nlohmann::json> metrics(const fs::path& folder) {
  std::vector<nlohmann::json> lines;
  std::ifstream input(folder / "metrics.jsonl");
  for (std::string line; std::getline(input, line);) {
    auto json = nlohmann::json::parse(line);
    for (const char* key : {"time", "samples_per_second", "data_wait_share"}) json.erase(key);
    lines.push_back(std::move(json));
  }
  return lines;
}

/// TensorBoard's records, without their times and the values that depend on time.
std::vector<std::string> events(const fs::path& folder) {
  std::vector<std::string> records;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("events.")) continue;
    const std::string bytes = read_file(entry.path());
    for (size_t at = 0; at < bytes.size();) {
      uint64_t size = 0;
      std::memcpy(&size, bytes.data() + at, sizeof size);
      constexpr size_t kHead = 12, kTail = 4, kTime = 9;  // the field wall_time comes first
      const std::string record = bytes.substr(at + kHead + kTime, size - kTime);
      if (record.find("samples_per_second") == std::string::npos &&
          record.find("data_wait_share") == std::string::npos)
        records.push_back(record);
      at += kHead + size + kTail;
    }
  }
  return records;
}

void expect_same(const fs::path& whole, const fs::path& resumed, const std::string& what) {
  SCOPED_TRACE(what);
  for (const char* file : {"model", "optimizer", "random"}) {
    const std::string path = std::string("checkpoints/last/") + file + ".safetensors";
    EXPECT_TRUE(read_file(whole / path) == read_file(resumed / path)) << path;
  }
  EXPECT_EQ(metrics(resumed), metrics(whole));
  EXPECT_EQ(events(resumed), events(whole));
  EXPECT_EQ(fs::read_symlink(resumed / "checkpoints/best"),
            fs::read_symlink(whole / "checkpoints/best"));
}

class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    run(whole(), 0);
    ASSERT_EQ(metrics(whole()).size(), size_t{kEpochs * kBatches / 2 + kEpochs});
    ASSERT_GT(events(whole()).size(), metrics(whole()).size());
  }
  fs::path whole() const { return folder_ / "whole"; }
  fs::path part(int64_t number) const { return folder_ / ("part-" + std::to_string(number)); }

  testing::TemporaryFolder folder_;
};

TEST_F(ResumeTest, StoppedAtEveryBatchItEndsAsTheUnbrokenRun) {
  for (int64_t step = 0; step <= kEpochs * kBatches; ++step) {
    run(part(step), 1, step);
    run(part(step), step % 2 == 0 ? 4 : 2);
    expect_same(whole(), part(step), "stopped at step " + std::to_string(step));
  }
}

TEST_F(ResumeTest, KilledAtEveryBatchItEndsAsTheUnbrokenRun) {
  for (int64_t step = 0; step <= kEpochs * kBatches; ++step) {
    EXPECT_THROW(run(part(step), 2, step, /*kill=*/true), Killed);
    run(part(step), 0);
    expect_same(whole(), part(step), "killed at step " + std::to_string(step));
  }
}

TEST_F(ResumeTest, StoppedAtEachBatchInTurnItEndsAsTheUnbrokenRun) {
  for (int64_t step = 1; step <= kEpochs * kBatches; ++step) run(part(0), step % 3, step);
  run(part(0), 4);
  expect_same(whole(), part(0), "many resumes");
}

}  // namespace
}  // namespace bellows::train
