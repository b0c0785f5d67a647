// Progress for a person: one redrawn line on a terminal, plain lines elsewhere.
#pragma once

#include <iosfwd>

#include "bellows/core/clock.h"
#include "bellows/train/callback.h"

namespace bellows::train {

struct ProgressDisplayOptions {
  /// Redraw one line (carriage return) in place of writing new ones.
  bool terminal = false;
  /// Least time between redraws on a terminal, and between plain lines inside an epoch.
  Clock::Duration redraw_every = std::chrono::milliseconds(100);
  Clock::Duration line_every = std::chrono::seconds(10);
};

/// Shows epoch, batch, loss, rate, the share of time spent waiting for data, and the time left; a
/// line with all metrics at the end of each epoch. Reads numbers the trainer has anyway: never
/// waits for a device.
class ProgressDisplay : public Callback {
 public:
  /// `out` must outlive the object.
  explicit ProgressDisplay(std::ostream& out, ProgressDisplayOptions options = {});
  void on_start(Trainer&, const Progress&) override;
  void on_step(Trainer&, const Progress&) override;
  void on_evaluation_batch(Trainer&, const Progress&, int64_t batch, int64_t batches) override;
  void on_epoch(Trainer&, const Progress&, const Values&) override;
  void on_end(Trainer&, const Progress&) override;

 private:
  bool due();
  void show(const std::string& line);
  void finish_line();

  std::ostream& out_;
  ProgressDisplayOptions options_;
  Clock::Duration shown_{0};
  Progress start_;
  bool line_open_ = false;
};

}  // namespace bellows::train
