// A run whose process or machine stops at any write, sync, rename or removal, of checkpoints,
// metrics or events, goes on and ends as the unbroken one.
#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/optim/adamw.h"
#include "bellows/train/checkpointing.h"
#include "bellows/train/metrics_file.h"
#include "bellows/train/tensorboard.h"
#include "bellows/train/trainer.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/process.h"

namespace bellows::train {
namespace {

namespace fs = std::filesystem;
using testing::FaultyFileSystem;
using testing::ForgetfulFileSystem;

/// Two epochs of three steps of one weight, with everything that a run writes.
class RunFaultTest : public ::testing::TestWithParam<bool> {
 protected:
  RunFaultTest() {
    at::set_num_threads(1);
    // In memory where the machine has such a directory: thousands of files are synced.
    if (::access("/dev/shm", W_OK) == 0) ::setenv("TEST_TMPDIR", "/dev/shm/", 1);
    log::set_level(log::Level::off);
  }
  ~RunFaultTest() override { log::set_level(log::Level::warn); }

  /// Trains in `folder`, from the newest checkpoint there if any; gives the weights it ends with.
  at::Tensor train(const fs::path& folder) const {
    const at::Tensor weight = at::full({2}, 1.0).requires_grad_();
    optim::AdamW optimizer({{"weight", weight}}, {.lr = 0.1});
    const auto dataset = std::make_shared<data::TensorDataset>(
        std::vector<at::Tensor>{at::arange(1, 4, at::kFloat)});
    const auto loader = data::make_loader(dataset, std::make_shared<data::RandomSampler>(3, 5), {});
    const StepFunction step = [&](const nn::Model&, const Tree& batch) {
      return StepOutput{weight.mul(batch[0].tensor()).square().sum(), {}};
    };
    Trainer trainer(
        nn::from_function([](const Tree& input) { return input; }, {{"weight", weight}}), optimizer,
        step, {.epochs = 2, .log_every = 1});
    trainer.add(std::make_shared<MetricsFile>(folder / "metrics.jsonl"));
    trainer.add(std::make_shared<TensorBoardLogger>(folder));
    trainer.add(std::make_shared<Checkpointing>(CheckpointingOptions{.root = folder / "checkpoints",
                                                                     .every_steps = 2,
                                                                     .keep = 1,
                                                                     .metric = "train_loss",
                                                                     .asynchronous = GetParam()}));
    if (const auto newest =
            checkpoint::latest(folder / "checkpoints", checkpoint::Check::contents)) {
      trainer.load(*newest, *loader);
    }
    trainer.fit(*loader);
    return weight.detach().clone();
  }

  static std::vector<nlohmann::json> lines(const fs::path& folder) {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      auto json = nlohmann::json::parse(line);
      for (const char* key : {"time", "samples_per_second", "data_wait_share"}) json.erase(key);
      lines.push_back(json);
    }
    return lines;
  }

  /// Whether the training in a process of its own was ended by the file system.
  bool is_stopped(FileSystem& faulty, const fs::path& folder) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const ScopedFileSystem scope(faulty);
      train(folder);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << WTERMSIG(status);
    return WEXITSTATUS(status) == 9;
  }

  void expect_the_same_end(const std::function<bool(int, const fs::path&)>& stop) const {
    const testing::TemporaryFolder whole;
    const at::Tensor expected = train(whole.path());
    int n = 0;
    for (bool stopped = true; stopped; ++n) {
      const testing::TemporaryFolder folder;
      stopped = stop(n, folder.path());
      EXPECT_TRUE(at::equal(train(folder.path()), expected)) << "call " << n;
      EXPECT_EQ(lines(folder.path()), lines(whole.path())) << "call " << n;
      for (const auto& entry : fs::directory_iterator(folder / "checkpoints")) {
        EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << "call " << n;
      }
      EXPECT_EQ(checkpoint::step_of(folder / "checkpoints" / "best"),
                checkpoint::step_of(whole / "checkpoints" / "best"));
    }
    EXPECT_GT(n, 60);
  }
};

TEST_P(RunFaultTest, KilledAtAnyCallItEndsAsTheUnbrokenRun) {
  expect_the_same_end([&](int n, const fs::path& folder) {
    FaultyFileSystem faulty(n, []() -> int { ::_exit(9); });
    return is_stopped(faulty, folder);
  });
}

TEST_P(RunFaultTest, MachineStoppedAtAnyCallItEndsAsTheUnbrokenRun) {
  expect_the_same_end([&](int n, const fs::path& folder) {
    ForgetfulFileSystem forgetful(n, /*forgets_entries=*/true);
    return is_stopped(forgetful, folder);
  });
}

TEST_P(RunFaultTest, FailingCallEndsTheRunWithItsReasonAndItGoesOn) {
  const testing::TemporaryFolder whole;
  const at::Tensor expected = train(whole.path());
  int n = 0;
  for (bool reached = true; reached; ++n) {
    const testing::TemporaryFolder folder;
    FaultyFileSystem faulty(n, [] { return ENOSPC; });
    try {
      const ScopedFileSystem scope(faulty);
      train(folder.path());
    } catch (const FileError& error) {
      EXPECT_EQ(error.code(), ENOSPC) << "call " << n;
      EXPECT_THAT(error.what(), ::testing::HasSubstr(folder.path().string()));
    }
    reached = faulty.reached();
    EXPECT_TRUE(at::equal(train(folder.path()), expected)) << "call " << n;
    EXPECT_EQ(lines(folder.path()), lines(whole.path())) << "call " << n;
  }
}

INSTANTIATE_TEST_SUITE_P(, RunFaultTest, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Asynchronous" : "Plain");
});

}  // namespace
}  // namespace bellows::train
