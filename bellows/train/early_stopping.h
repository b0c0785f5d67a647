// Ends a run that no longer gets better.
#pragma once

#include <string>

#include "bellows/train/callback.h"

namespace bellows::train {

struct EarlyStoppingOptions {
  /// A value of the on_epoch event. Larger is better for names that end in "accuracy", smaller for
  /// others.
  std::string metric = "test_loss";
  /// Epochs without improvement before fit() is stopped; >= 1.
  int64_t patience = 3;
  /// An improvement is a change by more than this; >= 0.
  double min_delta = 0;
};

/// Whether `value` of `metric` is better than `best` by more than `min_delta`. NaN is never better.
bool better(const std::string& metric, double value, double best, double min_delta = 0);

class EarlyStopping : public Callback {
 public:
  /// Throws ValueError for options out of range.
  explicit EarlyStopping(EarlyStoppingOptions options);
  std::string name() const override { return "early_stopping"; }
  /// A run that had been stopped before it was resumed stays stopped.
  void on_start(Trainer& trainer, const Progress&) override;
  /// Throws ValueError, listing the metrics there are, when the metric is not among them.
  void on_epoch(Trainer& trainer, const Progress&, const Values& values) override;
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  EarlyStoppingOptions options_;
  bool any_ = false;
  double best_ = 0;
  int64_t bad_epochs_ = 0;
};

}  // namespace bellows::train
