// When a run saves, and what it keeps.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/train/callback.h"

namespace bellows::checkpoint {
class AsyncSaver;
}

namespace bellows::train {

/// Which values of a metric are better.
enum class Direction {
  automatic,  // higher ones of a metric whose name ends in "accuracy", else lower ones
  lower,
  higher,
};

struct CheckpointingOptions {
  /// Where checkpoints go (checkpoint/checkpoint.h).
  std::filesystem::path root = {};
  /// Also save every so many steps; 0: at the ends of epochs only.
  int64_t every_steps = 0;
  /// How many checkpoints to keep besides the best; >= 1.
  int64_t keep = 2;
  /// How many of the best epochs' checkpoints to keep; >= 1.
  int64_t keep_best = 1;
  /// `best` points to the checkpoint of the epoch with the best value of this metric, if the run
  /// reports it.
  std::string metric = "test_loss";
  Direction direction = Direction::automatic;
  /// Training waits only until the state has been copied to memory of its own, and goes on while it
  /// is written. Costs that memory: once more what is saved.
  bool asynchronous = false;
};

/// Saves after every epoch, every `every_steps` steps, and when fit() ends for whatever reason but
/// an exception, unless that step's end has just been saved; fit() ends once everything is on disk.
/// An error of a save in the background is thrown at the next step. Add it last, so that the other
/// callbacks' state is that step's.
class Checkpointing : public Callback {
 public:
  /// Throws ValueError for options out of range.
  explicit Checkpointing(CheckpointingOptions options);
  ~Checkpointing() override;
  std::string name() const override { return "checkpointing"; }
  void on_start(Trainer& trainer, const Progress& progress) override;
  void on_step(Trainer& trainer, const Progress& progress) override;
  void on_epoch(Trainer& trainer, const Progress& progress, const Values& values) override;
  void on_end(Trainer& trainer, const Progress& progress) override;
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;
  /// The checkpoint that this process was the last to complete; waits for one that is being
  /// written.
  std::optional<std::filesystem::path> last() const;

 private:
  struct Kept {
    double value;
    int64_t step;
  };
  void save(Trainer& trainer, const Progress& progress);
  bool better(double value, double other) const;

  CheckpointingOptions options_;
  std::unique_ptr<checkpoint::AsyncSaver> saver_;  // null: not asynchronous
  std::optional<std::filesystem::path> last_;
  int64_t saved_step_ = -1;
  int64_t saved_epoch_ = -1;
  std::vector<Kept> best_;  // the best first
};

}  // namespace bellows::train
