#include "bellows/train/learning_rate.h"

#include "bellows/core/error.h"
#include "bellows/train/trainer.h"

namespace bellows::train {

LearningRate::LearningRate(const optim::Optimizer& optimizer,
                           std::shared_ptr<const optim::Schedule> schedule)
    : schedule_(std::move(schedule)) {
  if (!schedule_) throw ValueError("LearningRate: the schedule is null");
  for (size_t group = 0; group < optimizer.group_count(); ++group)
    initial_.push_back(optimizer.lr(group));
}

void LearningRate::on_start(Trainer& trainer, const Progress& progress) {
  on_step(trainer, progress);
}

void LearningRate::on_step(Trainer& trainer, const Progress& progress) {
  const double factor = schedule_->factor(progress.step);
  for (size_t group = 0; group < initial_.size(); ++group) {
    trainer.optimizer().set_lr(group, initial_[group] * factor);
  }
}

}  // namespace bellows::train
