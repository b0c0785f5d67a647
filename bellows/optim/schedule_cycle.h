// Schedules whose rates are given absolutely, and that may cycle the momentum against the rate.
// Sources: "Cyclical Learning Rates for Training Neural Networks" (Smith 2017), "Super-Convergence"
// (Smith, Topin 2018), torch/optim/lr_scheduler.py.
#pragma once

#include <functional>
#include <string>

#include "bellows/optim/schedule.h"

namespace bellows::optim {

/// Lists hold one value for all groups, or one for each.
struct CyclicLROptions {
  std::vector<double> base_lr = {};
  std::vector<double> max_lr = {};
  int64_t step_size_up = 2000;
  /// Nothing: as step_size_up.
  std::optional<int64_t> step_size_down = std::nullopt;
  /// "triangular", "triangular2" (half as high each cycle) or "exp_range" (gamma to the step).
  std::string mode = "triangular";
  double gamma = 1.0;
  /// In place of `mode`: of the cycle's number (1 is the first) or the step.
  std::function<double(double)> scale_fn = nullptr;
  /// "cycle" or "iterations": what scale_fn is given.
  std::string scale_mode = "cycle";
  bool cycle_momentum = true;
  std::vector<double> base_momentum = {0.8};
  std::vector<double> max_momentum = {0.9};
};

/// Up from base_lr to max_lr and back, over and over.
class CyclicLR : public Schedule {
 public:
  /// Throws ValueError for lists that are empty or hold negative numbers, sizes < 1 and unknown
  /// words.
  explicit CyclicLR(CyclicLROptions options);
  double rate(double initial, int64_t step, size_t group = 0) const override;
  std::optional<double> momentum(int64_t step, size_t group = 0) const override;

 private:
  double height(int64_t step) const;

  CyclicLROptions options_;
};

struct OneCycleLROptions {
  std::vector<double> max_lr = {};
  /// Or both `epochs` and `steps_per_epoch`.
  int64_t total_steps = 0;
  int64_t epochs = 0;
  int64_t steps_per_epoch = 0;
  double pct_start = 0.3;
  /// "cos" or "linear".
  std::string anneal_strategy = "cos";
  bool cycle_momentum = true;
  std::vector<double> base_momentum = {0.85};
  std::vector<double> max_momentum = {0.95};
  /// The first rate is max_lr over this,
  double div_factor = 25.0;
  /// the last is the first over this.
  double final_div_factor = 1e4;
  bool three_phase = false;
};

/// Up to max_lr over the first pct_start of the steps, then down to almost nothing. At step
/// total_steps, after the last, that stays, where Python's goes past it.
class OneCycleLR : public Schedule {
 public:
  /// Throws ValueError for lists that are empty or hold negative numbers, no total_steps, and
  /// values out of range.
  explicit OneCycleLR(OneCycleLROptions options);
  /// Throws ValueError for a step beyond total_steps.
  double rate(double initial, int64_t step, size_t group = 0) const override;
  std::optional<double> momentum(int64_t step, size_t group = 0) const override;

 private:
  struct Place {
    size_t phase;
    double part;
  };
  Place place(int64_t step) const;
  double between(double start, double end, double part) const;

  OneCycleLROptions options_;
  std::vector<double> ends_;  // of the phases
};

}  // namespace bellows::optim
