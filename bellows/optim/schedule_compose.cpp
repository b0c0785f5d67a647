#include "bellows/optim/schedule_compose.h"

#include <algorithm>

#include "bellows/optim/schedule_checks.h"

namespace bellows::optim {
namespace {

void require_all(const char* name, const std::vector<SchedulePointer>& schedules) {
  require(!schedules.empty(), name, "schedules", "none", "at least one");
  require(std::ranges::none_of(schedules, [](const auto& one) { return one == nullptr; }), name,
          "schedules", "a null pointer", "schedules");
}

}  // namespace

SequentialLR::SequentialLR(std::vector<SchedulePointer> schedules, std::vector<int64_t> milestones)
    : schedules_(std::move(schedules)), milestones_(std::move(milestones)) {
  require_all("SequentialLR", schedules_);
  require(milestones_.size() + 1 == schedules_.size(), "SequentialLR", "milestones",
          concat(milestones_.size(), " for ", schedules_.size(), " schedules"),
          "one fewer than schedules");
  require(std::ranges::is_sorted(milestones_), "SequentialLR", "milestones", "another order",
          "ascending ones");
}

size_t SequentialLR::active(int64_t step) const {
  return static_cast<size_t>(std::ranges::upper_bound(milestones_, step) - milestones_.begin());
}

double SequentialLR::rate(double initial, int64_t step, size_t group) const {
  const size_t now = active(step);
  return schedules_[now]->rate(initial, step - begin(now), group);
}

std::optional<double> SequentialLR::momentum(int64_t step, size_t group) const {
  const size_t now = active(step);
  return schedules_[now]->momentum(step - begin(now), group);
}

ChainedScheduler::ChainedScheduler(std::vector<SchedulePointer> schedules)
    : schedules_(std::move(schedules)) {
  require_all("ChainedScheduler", schedules_);
  for (size_t i = 0; i < schedules_.size(); ++i) {
    require(schedules_[i]->chains(), "ChainedScheduler", "schedules",
            concat("one (number ", i, ") that sets the rate"), "those that scale the rate before");
  }
}

double ChainedScheduler::rate(double initial, int64_t step, size_t group) const {
  for (const SchedulePointer& schedule : schedules_) initial = schedule->rate(initial, step, group);
  return initial;
}

}  // namespace bellows::optim
