#include "bellows/train/checkpointing.h"

#include <cmath>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/train/early_stopping.h"
#include "bellows/train/trainer.h"

namespace bellows::train {

Checkpointing::Checkpointing(CheckpointingOptions options) : options_(std::move(options)) {
  if (options_.every_steps < 0) {
    throw ValueError(
        concat("checkpointing: every_steps must be 0 or more, got ", options_.every_steps));
  }
  if (options_.keep < 1)
    throw ValueError(concat("checkpointing: keep must be 1 or more, got ", options_.keep));
}

void Checkpointing::save(Trainer& trainer, const Progress& progress) {
  saved_step_ = progress.step;
  saved_epoch_ = progress.epoch;
  last_ = trainer.save(options_.root);
}

void Checkpointing::on_step(Trainer& trainer, const Progress& progress) {
  const bool epoch_ends_here = progress.batch == progress.batches;  // saved by on_epoch
  if (options_.every_steps > 0 && progress.step % options_.every_steps == 0 && !epoch_ends_here) {
    save(trainer, progress);
    checkpoint::keep_last(options_.root, options_.keep);
  }
}

void Checkpointing::on_epoch(Trainer& trainer, const Progress& progress, const Values& values) {
  const auto value = values.find(options_.metric);
  const bool best = value != values.end() && !std::isnan(value->second) &&
                    (!any_ || better(options_.metric, value->second, best_));
  if (best) {
    any_ = true;
    best_ = value->second;
  }
  save(trainer, progress);
  if (best) checkpoint::mark_best(options_.root, *last_);
  checkpoint::keep_last(options_.root, options_.keep);
}

void Checkpointing::on_end(Trainer& trainer, const Progress& progress) {
  if (saved_step_ == progress.step && saved_epoch_ == progress.epoch) return;
  save(trainer, progress);
  checkpoint::keep_last(options_.root, options_.keep);
}

Tree Checkpointing::state_dict() const {
  return Tree::Dict{{"any", any_}, {"best", best_}};
}

void Checkpointing::load_state_dict(const Tree& state) {
  const bool any = state.at("any").boolean();
  best_ = state.at("best").number();
  any_ = any;
}

}  // namespace bellows::train
