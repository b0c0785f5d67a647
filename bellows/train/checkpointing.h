// When a run saves.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "bellows/train/callback.h"

namespace bellows::train {

struct CheckpointingOptions {
  /// Where checkpoints go (checkpoint/checkpoint.h).
  std::filesystem::path root = {};
  /// Also save every so many steps; 0: at the ends of epochs only.
  int64_t every_steps = 0;
  /// How many checkpoints to keep besides the best; >= 1.
  int64_t keep = 2;
  /// `best` points to the checkpoint of the epoch with the best value of this metric, if the run
  /// reports it.
  std::string metric = "test_loss";
};

/// Saves after every epoch, every `every_steps` steps, and when fit() ends for whatever reason but
/// an exception, unless that step's end has just been saved. Add it last, so that the other
/// callbacks' state is that step's.
class Checkpointing : public Callback {
 public:
  /// Throws ValueError for options out of range.
  explicit Checkpointing(CheckpointingOptions options);
  std::string name() const override { return "checkpointing"; }
  void on_step(Trainer& trainer, const Progress& progress) override;
  void on_epoch(Trainer& trainer, const Progress& progress, const Values& values) override;
  void on_end(Trainer& trainer, const Progress& progress) override;
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;
  /// The checkpoint saved last in this process.
  const std::optional<std::filesystem::path>& last() const { return last_; }

 private:
  void save(Trainer& trainer, const Progress& progress);

  CheckpointingOptions options_;
  std::optional<std::filesystem::path> last_;
  int64_t saved_step_ = -1;
  int64_t saved_epoch_ = -1;
  bool any_ = false;
  double best_ = 0;
};

}  // namespace bellows::train
