// Moves an optimizer's learning rates along a schedule. Source: LRScheduler in
// torch/optim/lr_scheduler.py.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bellows/optim/optimizer.h"
#include "bellows/optim/schedule.h"

namespace bellows::optim {

/// Sets rate, and momentum where the schedule has one, of a group for a step. Throws ValueError
/// where the optimizer has no momentum to set.
void apply(const Schedule& schedule, Optimizer& optimizer, size_t group, double initial,
           int64_t step);

/// Of our optimizers, or of LibTorch's through `adapt`. The rates follow from the step alone, so
/// that it does not matter whether scheduler and optimizer are restored before or after each other,
/// nor when the scheduler was made; where that cannot come out right, step() is an error.
class LRScheduler : public Stateful {
 public:
  /// Sets the rates of step last_epoch + 1. The initial rates are the optimizer's of now, or those
  /// that an earlier schedule began with (Optimizer::initial_lr). To go on without a saved
  /// scheduler, give the last step done as last_epoch: then the optimizer must know its initial
  /// rates, from a scheduler before, or from its loaded state. The optimizer must outlive the
  /// scheduler. Throws ValueError for a null schedule, and what it throws.
  LRScheduler(Optimizer& optimizer, std::shared_ptr<const Schedule> schedule,
              int64_t last_epoch = -1);

  /// Once after every step of the optimizer, or after every epoch. Throws ValueError where somebody
  /// else has changed the rates meanwhile.
  void step();
  /// The rates in force, by group.
  const std::vector<double>& get_last_lr() const { return last_lr_; }
  /// Steps done.
  int64_t last_epoch() const { return last_epoch_; }

  /// {"last_epoch", "base_lrs", "_last_lr"}; loading it sets the optimizer's rates. Throws
  /// ValueError for another number of groups.
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  void set_rates();

  Optimizer& optimizer_;
  std::shared_ptr<const Schedule> schedule_;
  int64_t last_epoch_;
  std::vector<double> base_lrs_;
  std::vector<double> last_lr_;
};

struct ReduceLROnPlateauOptions {
  /// "min" or "max": what is better.
  std::string mode = "min";
  double factor = 0.1;
  int64_t patience = 10;
  double threshold = 1e-4;
  /// "rel" or "abs".
  std::string threshold_mode = "rel";
  int64_t cooldown = 0;
  /// One, or one for each group.
  std::vector<double> min_lr = {0};
  double eps = 1e-8;
};

/// Lowers the rates once a metric has not become better for more than `patience` epochs. Has a
/// state: save it. NaN is never better.
class ReduceLROnPlateau : public Stateful {
 public:
  /// The optimizer must outlive it. Throws ValueError for options out of PyTorch's ranges.
  explicit ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options = {});

  void step(double metric);
  const std::vector<double>& get_last_lr() const { return last_lr_; }
  const ReduceLROnPlateauOptions& options() const { return options_; }

  /// Loading it sets the optimizer's rates.
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  bool is_better(double metric) const;
  void reduce();
  void read_rates();

  Optimizer& optimizer_;
  ReduceLROnPlateauOptions options_;
  double best_;
  int64_t cooldown_left_ = 0;
  int64_t bad_epochs_ = 0;
  int64_t last_epoch_ = 0;
  std::vector<double> last_lr_;
};

/// Throws ValueError "ReduceLROnPlateau: <key>: …" for options out of PyTorch's ranges.
void check(const ReduceLROnPlateauOptions& options);

}  // namespace bellows::optim
