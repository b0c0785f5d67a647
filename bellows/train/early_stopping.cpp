#include "bellows/train/early_stopping.h"

#include <cmath>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/train/trainer.h"

namespace bellows::train {

bool better(const std::string& metric, double value, double best, double min_delta) {
  if (metric.ends_with("accuracy")) return value > best + min_delta;
  return value < best - min_delta;
}

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(std::move(options)) {
  if (options_.patience < 1) {
    throw ValueError(concat("early stopping: patience must be 1 or more, got ", options_.patience));
  }
  if (!(options_.min_delta >= 0)) {
    throw ValueError(
        concat("early stopping: min_delta must be 0 or more, got ", options_.min_delta));
  }
}

void EarlyStopping::on_start(Trainer& trainer, const Progress&) {
  if (bad_epochs_ >= options_.patience) trainer.stop();
}

void EarlyStopping::on_epoch(Trainer& trainer, const Progress& progress, const Values& values) {
  const auto found = values.find(options_.metric);
  if (found == values.end()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : values) names.push_back(name);
    throw ValueError("early stopping watches " + options_.metric +
                     ", which this run does not report; it reports " + join(names));
  }
  if (!std::isnan(found->second) &&
      (!any_ || better(options_.metric, found->second, best_, options_.min_delta))) {
    any_ = true;
    best_ = found->second;
    bad_epochs_ = 0;
  } else if (++bad_epochs_ >= options_.patience) {
    log::info(concat("early stopping after epoch ", progress.epoch, ": ", options_.metric,
                     " has not improved on ", best_, " for ", bad_epochs_, " epochs"));
    trainer.stop();
  }
}

Tree EarlyStopping::state_dict() const {
  return Tree::Dict{{"any", any_}, {"best", best_}, {"bad_epochs", bad_epochs_}};
}

void EarlyStopping::load_state_dict(const Tree& state) {
  const bool any = state.at("any").boolean();
  const double best = state.at("best").number();
  bad_epochs_ = state.at("bad_epochs").integer();
  any_ = any;
  best_ = best;
}

}  // namespace bellows::train
