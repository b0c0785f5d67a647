#include "bellows/optim/lr_scheduler.h"

#include <limits>

#include "bellows/optim/schedule_checks.h"

namespace bellows::optim {
namespace {

Tree::List as_list(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

std::vector<double> numbers(const Tree& saved, const char* what, size_t count) {
  std::vector<double> values;
  for (const Tree& value : saved.list()) values.push_back(value.number());
  if (values.size() == count) return values;
  throw ValueError(concat(what, ": the saved state has ", values.size(),
                          " parameter groups, the optimizer ", count));
}

}  // namespace

void apply(const Schedule& schedule, Optimizer& optimizer, size_t group, double initial,
           int64_t step) {
  optimizer.set_lr(group, schedule.rate(initial, step, group));
  if (const auto momentum = schedule.momentum(step, group)) {
    optimizer.set_momentum(group, *momentum);
  }
}

LRScheduler::LRScheduler(Optimizer& optimizer, std::shared_ptr<const Schedule> schedule,
                         int64_t last_epoch)
    : optimizer_(optimizer), schedule_(std::move(schedule)), last_epoch_(last_epoch + 1) {
  if (!schedule_) throw ValueError("LRScheduler: the schedule is null");
  require_at_least(-1, "LRScheduler", "last_epoch", last_epoch);
  for (size_t group = 0; group < optimizer_.group_count(); ++group) {
    const auto known = optimizer_.initial_lr(group);
    if (last_epoch >= 0 && !known) {
      throw ValueError(concat("LRScheduler: last_epoch is ", last_epoch, ", but group ", group,
                              " of ", optimizer_.name(),
                              " does not know its initial rate; load the optimizer's state first"));
    }
    const double now = optimizer_.lr(group);
    base_lrs_.push_back(schedule_->begins_now() ? now : known.value_or(now));
  }
  set_rates();
  for (size_t group = 0; group < base_lrs_.size(); ++group) {
    if (!optimizer_.initial_lr(group)) optimizer_.set_initial_lr(group, base_lrs_[group]);
  }
}

void LRScheduler::set_rates() {
  last_lr_.clear();
  for (size_t group = 0; group < base_lrs_.size(); ++group) {
    apply(*schedule_, optimizer_, group, base_lrs_[group], last_epoch_);
    last_lr_.push_back(optimizer_.lr(group));
  }
}

void LRScheduler::step() {
  for (size_t group = 0; group < last_lr_.size(); ++group) {
    const double now = optimizer_.lr(group);
    if (now == last_lr_[group]) continue;
    throw ValueError(concat("LRScheduler: the rate of group ", group, " is ", now, ", not ",
                            last_lr_[group], " as set at step ", last_epoch_,
                            "; where the optimizer's state has been loaded, load the scheduler's, "
                            "too, or make it afterwards with last_epoch"));
  }
  ++last_epoch_;
  set_rates();
}

Tree LRScheduler::state_dict() const {
  return Tree::Dict{{"last_epoch", last_epoch_},
                    {"base_lrs", as_list(base_lrs_)},
                    {"_last_lr", as_list(last_lr_)}};
}

void LRScheduler::load_state_dict(const Tree& state) {
  const int64_t last_epoch = state.at("last_epoch").integer();
  std::vector<double> base = numbers(state.at("base_lrs"), "LRScheduler", optimizer_.group_count());
  require_at_least(0, "LRScheduler", "last_epoch", last_epoch);
  last_epoch_ = last_epoch;
  base_lrs_ = std::move(base);
  set_rates();
  for (size_t group = 0; group < base_lrs_.size(); ++group) {
    if (!schedule_->begins_now()) optimizer_.set_initial_lr(group, base_lrs_[group]);
  }
}

void check(const ReduceLROnPlateauOptions& options) {
  constexpr const char* kName = "ReduceLROnPlateau";
  require(options.mode == "min" || options.mode == "max", kName, "mode", options.mode,
          "min or max");
  require(options.threshold_mode == "rel" || options.threshold_mode == "abs", kName,
          "threshold_mode", options.threshold_mode, "rel or abs");
  require(options.factor >= 0 && options.factor < 1, kName, "factor", options.factor,
          "at least 0 and below 1");
  require_at_least(0, kName, "patience", options.patience);
  require_at_least(0, kName, "cooldown", options.cooldown);
  require_factor(kName, "threshold", options.threshold);
  require_factor(kName, "eps", options.eps);
  require(!options.min_lr.empty(), kName, "min_lr", "none", "one, or one for each group");
  for (const double rate : options.min_lr) require_factor(kName, "min_lr", rate);
}

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options)
    : optimizer_(optimizer), options_(std::move(options)) {
  check(options_);
  const size_t groups = optimizer_.group_count();
  require(options_.min_lr.size() == 1 || options_.min_lr.size() == groups, "ReduceLROnPlateau",
          "min_lr", concat(options_.min_lr.size(), " values for ", groups, " groups"),
          "one, or one for each group");
  best_ = std::numeric_limits<double>::infinity();
  if (options_.mode == "max") best_ = -best_;
  read_rates();
}

void ReduceLROnPlateau::read_rates() {
  last_lr_.clear();
  for (size_t group = 0; group < optimizer_.group_count(); ++group) {
    last_lr_.push_back(optimizer_.lr(group));
  }
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool relative = options_.threshold_mode == "rel";
  if (options_.mode == "min") {
    return metric < (relative ? best_ * (1.0 - options_.threshold) : best_ - options_.threshold);
  }
  return metric > (relative ? best_ * (options_.threshold + 1.0) : best_ + options_.threshold);
}

void ReduceLROnPlateau::reduce() {
  for (size_t group = 0; group < optimizer_.group_count(); ++group) {
    const double before = optimizer_.lr(group);
    const double least = of_group("ReduceLROnPlateau", "min_lr", options_.min_lr, group);
    const double after = std::max(before * options_.factor, least);
    if (before - after > options_.eps) optimizer_.set_lr(group, after);
  }
}

void ReduceLROnPlateau::step(double metric) {
  ++last_epoch_;
  if (is_better(metric)) {
    best_ = metric;
    bad_epochs_ = 0;
  } else {
    ++bad_epochs_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_epochs_ = 0;
  }
  if (bad_epochs_ > options_.patience) {
    reduce();
    cooldown_left_ = options_.cooldown;
    bad_epochs_ = 0;
  }
  read_rates();
}

Tree ReduceLROnPlateau::state_dict() const {
  return Tree::Dict{{"best", best_},
                    {"cooldown_counter", cooldown_left_},
                    {"num_bad_epochs", bad_epochs_},
                    {"last_epoch", last_epoch_},
                    {"_last_lr", as_list(last_lr_)}};
}

void ReduceLROnPlateau::load_state_dict(const Tree& state) {
  const double best = state.at("best").number();
  const int64_t cooldown = state.at("cooldown_counter").integer();
  const int64_t bad = state.at("num_bad_epochs").integer();
  const int64_t epoch = state.at("last_epoch").integer();
  const std::vector<double> rates =
      numbers(state.at("_last_lr"), "ReduceLROnPlateau", optimizer_.group_count());
  for (size_t group = 0; group < rates.size(); ++group) optimizer_.set_lr(group, rates[group]);
  best_ = best;
  cooldown_left_ = cooldown;
  bad_epochs_ = bad;
  last_epoch_ = epoch;
  last_lr_ = rates;
}

}  // namespace bellows::optim
