// Means over samples, without waiting for the device at every step and without keeping a graph
// alive.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bellows/parallel/group.h"
#include "bellows/train/step.h"
#include "bellows/tree/stateful.h"

namespace bellows::train {

/// Weighs every batch by its samples. Values on the CPU are read at once; values on a device are
/// kept there (detached) until `collect`, which copies all of them in one transfer. One thread.
class MeanMetrics : public Stateful {
 public:
  /// `step` is the number reported when a loss turns out not to be finite.
  void add(const StepOutput& output, int64_t samples, int64_t step);

  /// Folds in what is still on the device. Returns the first step whose loss was NaN or infinite,
  /// or -1.
  int64_t collect();
  /// Values not yet folded in.
  size_t pending() const { return pending_.size(); }

  /// Means by name ("loss" and the metrics) of everything collected; empty when nothing was added.
  std::map<std::string, double> means() const;
  /// Mean loss of what was collected since the last call of this function; NaN when that is
  /// nothing. Unlike the other sums, this window goes on over `reset`.
  double take_window_loss();
  int64_t samples() const { return samples_; }
  /// What all ranks have collected together, the same on each. Collective; call `collect` first.
  MeanMetrics over(const parallel::Group& group) const;
  /// Starts new means.
  void reset();

  /// Call `collect` first.
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  struct Pending {
    std::vector<std::pair<std::string, at::Tensor>> values;
    int64_t samples;
    int64_t step;
  };
  void fold(const std::string& name, double value, int64_t samples);

  std::vector<Pending> pending_;
  std::map<std::string, std::pair<double, int64_t>> sums_;
  int64_t samples_ = 0;
  std::pair<double, int64_t> window_{0, 0};
  int64_t first_bad_ = -1;
};

}  // namespace bellows::train
