// A schedule by configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bellows/core/options.h"
#include "bellows/optim/lr_scheduler.h"
#include "bellows/optim/schedule.h"

namespace bellows::optim {

/// How long a run is.
struct RunLength {
  int64_t steps = 1;
  int64_t epochs = 1;
};

/// At most one of `schedule` and `plateau` is there; neither: a constant rate.
struct ScheduleChoice {
  std::shared_ptr<const Schedule> schedule = nullptr;
  std::optional<ReduceLROnPlateauOptions> plateau = std::nullopt;
  /// What the plateau goes by: "test_loss", "train_loss" or "test_accuracy".
  std::string metric = "test_loss";
  /// A step of the schedule is an epoch.
  bool by_epoch = false;

  bool is_constant() const { return !schedule && !plateau; }
};

/// Reads a table of the configuration: `name` (PyTorch's, in upper or lower case; "constant", the
/// default; "linear", from 1 to 0 over the run; "warmup_cosine"), that schedule's options under
/// PyTorch's names with PyTorch's defaults, and `interval` ("step", the default, or "epoch").
/// Lengths that PyTorch has no default for (T_max, total_steps) are the whole run's where they are
/// 0 or absent. Throws ValueError naming the key. LambdaLR, MultiplicativeLR, SequentialLR and
/// ChainedScheduler are for programs.
ScheduleChoice make_schedule(Options& table, RunLength run);

}  // namespace bellows::optim
