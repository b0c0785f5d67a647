// Schedules made of schedules. Source: torch/optim/lr_scheduler.py.
#pragma once

#include <memory>

#include "bellows/optim/schedule.h"

namespace bellows::optim {

using SchedulePointer = std::shared_ptr<const Schedule>;

/// One schedule after the other: each begins, with its step 0 and the group's initial rate, at its
/// milestone.
class SequentialLR : public Schedule {
 public:
  /// Throws ValueError for no or null schedules, and unless there is one milestone fewer, in
  /// ascending order.
  SequentialLR(std::vector<SchedulePointer> schedules, std::vector<int64_t> milestones);
  double rate(double initial, int64_t step, size_t group = 0) const override;
  std::optional<double> momentum(int64_t step, size_t group = 0) const override;

 private:
  size_t active(int64_t step) const;
  int64_t begin(size_t schedule) const { return schedule == 0 ? 0 : milestones_[schedule - 1]; }

  std::vector<SchedulePointer> schedules_;
  std::vector<int64_t> milestones_;
};

/// All at once: the product of their factors.
class ChainedScheduler : public Schedule {
 public:
  /// Throws ValueError for no or null schedules, and for one that does not scale the rate it is
  /// given but sets one: LambdaLR, CosineAnnealingLR with an eta_min, those that restart or cycle.
  explicit ChainedScheduler(std::vector<SchedulePointer> schedules);
  double rate(double initial, int64_t step, size_t group = 0) const override;
  bool chains() const override { return true; }

 private:
  std::vector<SchedulePointer> schedules_;
};

}  // namespace bellows::optim
