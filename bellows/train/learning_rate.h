// Moves the learning rate along a schedule, step by step.
#pragma once

#include <memory>
#include <vector>

#include "bellows/optim/optimizer.h"
#include "bellows/optim/schedule.h"
#include "bellows/train/callback.h"

namespace bellows::train {

class LearningRate : public Callback {
 public:
  /// Every parameter group's rate becomes its rate as of now times the schedule's factor. Make it
  /// before a checkpoint is loaded. Throws ValueError for a null schedule.
  LearningRate(const optim::Optimizer& optimizer, std::shared_ptr<const optim::Schedule> schedule);
  void on_start(Trainer& trainer, const Progress& progress) override;
  void on_step(Trainer& trainer, const Progress& progress) override;

 private:
  std::vector<double> initial_;
  std::shared_ptr<const optim::Schedule> schedule_;
};

}  // namespace bellows::train
