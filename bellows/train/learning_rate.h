// Moves the learning rate along a schedule.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/optim/lr_scheduler.h"
#include "bellows/optim/make_schedule.h"
#include "bellows/optim/optimizer.h"
#include "bellows/optim/schedule.h"
#include "bellows/train/callback.h"

namespace bellows::train {

/// Every parameter group's rate becomes what the schedule makes of its rate as of now; its momentum
/// too, where the schedule has one. Make it before a checkpoint is loaded.
class LearningRate : public Callback {
 public:
  /// Step by step. Throws ValueError for a null schedule. The optimizer must outlive it.
  LearningRate(optim::Optimizer& optimizer, std::shared_ptr<const optim::Schedule> schedule);
  /// As configured: by steps or epochs, or by an epoch's metric. Throws ValueError for a constant
  /// one.
  LearningRate(optim::Optimizer& optimizer, optim::ScheduleChoice choice);

  /// Only what goes by a metric has a state.
  std::string name() const override { return plateau_ ? "learning_rate" : ""; }
  void on_start(Trainer& trainer, const Progress& progress) override;
  void on_step(Trainer& trainer, const Progress& progress) override;
  /// Throws ValueError, listing the metrics there are, when the metric is not among them.
  void on_epoch(Trainer& trainer, const Progress& progress, const Values& values) override;
  Tree state_dict() const override;
  /// Where the initial rates are others than when it was saved, rates change in proportion.
  void load_state_dict(const Tree& state) override;

 private:
  void set_rates(int64_t step);

  optim::Optimizer& optimizer_;
  optim::ScheduleChoice choice_;
  std::vector<double> initial_;
  std::unique_ptr<optim::ReduceLROnPlateau> plateau_;
};

}  // namespace bellows::train
