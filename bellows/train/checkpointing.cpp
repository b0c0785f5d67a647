#include "bellows/train/checkpointing.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "bellows/checkpoint/async_saver.h"
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/train/early_stopping.h"
#include "bellows/train/trainer.h"

namespace bellows::train {

namespace fs = std::filesystem;

Checkpointing::Checkpointing(CheckpointingOptions options) : options_(std::move(options)) {
  const auto check = [](const char* name, int64_t value, int64_t least) {
    if (value >= least) return;
    throw ValueError(concat("checkpointing: ", name, " must be ", least, " or more, got ", value));
  };
  check("every_steps", options_.every_steps, 0);
  check("keep", options_.keep, 1);
  check("keep_best", options_.keep_best, 1);
  if (options_.asynchronous) saver_ = std::make_unique<checkpoint::AsyncSaver>();
}

Checkpointing::~Checkpointing() = default;

bool Checkpointing::better(double value, double other) const {
  if (options_.direction == Direction::automatic) {
    return train::better(options_.metric, value, other);
  }
  return options_.direction == Direction::higher ? value > other : value < other;
}

// Links and removals are a part of the save: they follow it in whichever thread writes it.
void Checkpointing::save(Trainer& trainer, const Progress& progress) {
  const int64_t step = progress.step;
  std::set<int64_t> kept;
  for (const Kept& one : best_) kept.insert(one.step);
  const bool is_best = !best_.empty() && best_.front().step == step;
  const auto after = [options = options_, kept, is_best](const fs::path& directory) {
    if (is_best) checkpoint::mark_best(options.root, directory);
    checkpoint::keep_last(options.root, options.keep, kept);
  };
  if (saver_ != nullptr) {
    trainer.save(options_.root, *saver_, after);
  } else {
    last_ = trainer.save(options_.root, after);
  }
  saved_step_ = step;
  saved_epoch_ = progress.epoch;
}

// A run that goes on from an earlier checkpoint has the best of that time.
void Checkpointing::on_start(Trainer& trainer, const Progress&) {
  std::erase_if(best_, [&](const Kept& one) {
    return !fs::exists(checkpoint::directory_of(options_.root, one.step));
  });
  if (best_.empty()) return;
  const fs::path best = checkpoint::directory_of(options_.root, best_.front().step);
  std::error_code ignored;
  if (trainer.group().rank() == 0 && !fs::equivalent(options_.root / "best", best, ignored)) {
    try {
      checkpoint::mark_best(options_.root, best);
    } catch (const Error& error) {  // damaged: the next best takes its place
      log::warn(concat("the best checkpoint cannot be used: ", error.what()));
      best_.erase(best_.begin());
    }
  }
}

void Checkpointing::on_step(Trainer& trainer, const Progress& progress) {
  if (saver_ != nullptr) saver_->rethrow();
  const bool epoch_ends_here = progress.batch == progress.batches;  // saved by on_epoch
  if (options_.every_steps > 0 && progress.step % options_.every_steps == 0 && !epoch_ends_here) {
    save(trainer, progress);
  }
}

void Checkpointing::on_epoch(Trainer& trainer, const Progress& progress, const Values& values) {
  const auto value = values.find(options_.metric);
  if (value != values.end() && !std::isnan(value->second)) {
    const auto place = std::ranges::find_if(
        best_, [&](const Kept& one) { return better(value->second, one.value); });
    best_.insert(place, {value->second, progress.step});
    if (std::ssize(best_) > options_.keep_best) best_.resize(options_.keep_best);
  }
  save(trainer, progress);
}

void Checkpointing::on_end(Trainer& trainer, const Progress& progress) {
  if (saver_ != nullptr) {
    try {
      saver_->wait();
    } catch (const Error& error) {  // once more: this is the last chance to keep the state
      log::warn(concat("a checkpoint could not be saved: ", error.what(), "; saving again"));
      saved_step_ = -1;
    }
  }
  if (saved_step_ != progress.step || saved_epoch_ != progress.epoch) save(trainer, progress);
  if (saver_ != nullptr) saver_->wait();
}

std::optional<fs::path> Checkpointing::last() const {
  if (saver_ == nullptr) return last_;
  saver_->settle();
  return saver_->last();
}

Tree Checkpointing::state_dict() const {
  Tree::List best;
  for (const Kept& one : best_)
    best.emplace_back(Tree::Dict{{"step", one.step}, {"value", one.value}});
  return Tree::Dict{{"best", std::move(best)}};
}

void Checkpointing::load_state_dict(const Tree& state) {
  std::vector<Kept> best;
  if (state.at("best").is_list()) {
    for (const Tree& one : state.at("best").list()) {
      best.push_back({one.at("value").number(), one.at("step").integer()});
    }
  } else if (state.at("any").boolean()) {
    // Before several were kept: the value alone. The link says which step it was.
    std::error_code ignored;
    const fs::path link = options_.root / "best";
    if (fs::exists(link / "checkpoint.json", ignored)) {
      best.push_back({state.at("best").number(), checkpoint::step_of(link)});
    }
  }
  if (std::ssize(best) > options_.keep_best) best.resize(options_.keep_best);
  best_ = std::move(best);
}

}  // namespace bellows::train
