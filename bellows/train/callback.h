// What a training loop reports, and who listens.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "bellows/tree/stateful.h"

namespace bellows::train {

class Trainer;

using Values = std::map<std::string, double>;

/// Where a run stands. Plain numbers: reading them never waits for a device.
struct Progress {
  int64_t step = 0;     // optimizer steps done
  int64_t epoch = 0;    // epochs done
  int64_t epochs = 0;   // epochs wanted
  int64_t batch = 0;    // batches done in this epoch
  int64_t batches = 0;  // batches in an epoch
  int64_t samples = 0;  // training samples seen, over all epochs
  double seconds =
      0;  // spent in training steps and waiting for data, earlier parts of the run included
  double wait_seconds = 0;  // of these, waiting for data
  double loss = 0;          // running mean of this epoch as of the last collection
};

/// Called in the thread that runs fit(), in the order in which callbacks were added. An exception
/// ends the run. A callback with state is saved and restored under its `name()`; the default has
/// none.
class Callback : public Stateful {
 public:
  /// Key of its state in a checkpoint; unique among a trainer's callbacks that have state; "" for
  /// no state.
  virtual std::string name() const { return ""; }
  virtual void on_start(Trainer&, const Progress&) {}
  virtual void on_step(Trainer&, const Progress&) {}
  /// Every `log_every` steps: "train_loss" since the last log, "lr", "samples_per_second",
  /// "data_wait_share".
  virtual void on_log(Trainer&, const Progress&, const Values&) {}
  /// Between evaluation batches, for progress displays.
  virtual void on_evaluation_batch(Trainer&, const Progress&, int64_t batch, int64_t batches) {
    (void)batch;
    (void)batches;
  }
  /// After every epoch: "train_loss" over the epoch, and "test_" metrics when there is an
  /// evaluation loader.
  virtual void on_epoch(Trainer&, const Progress&, const Values&) {}
  /// Before a checkpoint reads the state: flush what must not be lost.
  virtual void on_checkpoint(Trainer&, const Progress&) {}
  /// Once, at the end, however fit() ends except by an exception.
  virtual void on_end(Trainer&, const Progress&) {}

  Tree state_dict() const override { return Tree::Dict{}; }
  void load_state_dict(const Tree&) override {}
};

}  // namespace bellows::train
