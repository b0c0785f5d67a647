// Schedules along half a cosine. Sources: "SGDR: Stochastic Gradient Descent with Warm Restarts"
// (Loshchilov, Hutter 2017), "Averaging Weights Leads to Wider Optima" (Izmailov et al. 2018) for
// SWALR, torch/optim/lr_scheduler.py, torch/optim/swa_utils.py.
#pragma once

#include <string>

#include "bellows/optim/schedule.h"

namespace bellows::optim {

/// From the initial rate to eta_min over T_max steps, then back up, and so on.
struct CosineAnnealingLROptions {
  int64_t T_max = 0;
  double eta_min = 0;
};

class CosineAnnealingLR : public Schedule {
 public:
  /// Throws ValueError for T_max < 1 or an eta_min that is negative or not finite.
  explicit CosineAnnealingLR(CosineAnnealingLROptions options);
  double rate(double initial, int64_t step, size_t group = 0) const override;
  /// With eta_min 0; equal to Python's chain up to T_max.
  bool chains() const override { return options_.eta_min == 0; }

 private:
  CosineAnnealingLROptions options_;
};

/// The same, then at once back to the initial rate; each period is T_mult times as long as the one
/// before.
struct CosineAnnealingWarmRestartsOptions {
  int64_t T_0 = 0;
  int64_t T_mult = 1;
  double eta_min = 0;
};

class CosineAnnealingWarmRestarts : public Schedule {
 public:
  /// Throws ValueError for T_0 < 1, T_mult < 1 or an eta_min that is negative or not finite.
  explicit CosineAnnealingWarmRestarts(CosineAnnealingWarmRestartsOptions options);
  double rate(double initial, int64_t step, size_t group = 0) const override;

 private:
  CosineAnnealingWarmRestartsOptions options_;
};

/// From start_factor in a straight line to 1 over warmup_steps, then along half a cosine to
/// end_factor at total_steps, then constant.
struct WarmupCosineOptions {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double start_factor = 0;
  double end_factor = 0;
};

class WarmupCosine : public FactorSchedule {
 public:
  /// Throws ValueError for warmup_steps < 0, total_steps < 1 or below warmup_steps, or a factor
  /// outside of [0, 1].
  explicit WarmupCosine(WarmupCosineOptions options);
  double factor(int64_t step) const override;

 private:
  WarmupCosineOptions options_;
};

/// From the rate of now to swa_lr over anneal_epochs steps, then constant: for stochastic weight
/// averaging.
struct SWALROptions {
  /// One, or one for each group.
  std::vector<double> swa_lr = {};
  int64_t anneal_epochs = 10;
  /// "cos" or "linear".
  std::string anneal_strategy = "cos";
};

class SWALR : public Schedule {
 public:
  /// Throws ValueError for no swa_lr or a negative one, anneal_epochs < 0, or another strategy.
  explicit SWALR(SWALROptions options);
  double rate(double initial, int64_t step, size_t group = 0) const override;
  bool begins_now() const override { return true; }

 private:
  SWALROptions options_;
};

}  // namespace bellows::optim
