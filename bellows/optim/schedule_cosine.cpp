#include "bellows/optim/schedule_cosine.h"

#include <algorithm>
#include <numbers>

#include "bellows/optim/schedule_checks.h"

namespace bellows::optim {
namespace {

// 1 at 0, 0 at 1.
double half_cosine(double part) {
  return (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace

CosineAnnealingLR::CosineAnnealingLR(CosineAnnealingLROptions options) : options_(options) {
  require_at_least(1, "CosineAnnealingLR", "T_max", options_.T_max);
  require_factor("CosineAnnealingLR", "eta_min", options_.eta_min);
}

double CosineAnnealingLR::rate(double initial, int64_t step, size_t /*group*/) const {
  const double part = static_cast<double>(step) / static_cast<double>(options_.T_max);
  return options_.eta_min + (initial - options_.eta_min) * half_cosine(part);
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(CosineAnnealingWarmRestartsOptions options)
    : options_(options) {
  require_at_least(1, "CosineAnnealingWarmRestarts", "T_0", options_.T_0);
  require_at_least(1, "CosineAnnealingWarmRestarts", "T_mult", options_.T_mult);
  require_factor("CosineAnnealingWarmRestarts", "eta_min", options_.eta_min);
}

double CosineAnnealingWarmRestarts::rate(double initial, int64_t step, size_t /*group*/) const {
  int64_t period = options_.T_0;
  if (options_.T_mult == 1) {
    step %= period;
  } else {
    while (step >= period) {
      step -= period;
      period *= options_.T_mult;
    }
  }
  const double part = static_cast<double>(step) / static_cast<double>(period);
  return options_.eta_min + (initial - options_.eta_min) * half_cosine(part);
}

WarmupCosine::WarmupCosine(WarmupCosineOptions options) : options_(options) {
  require_at_least(0, "WarmupCosine", "warmup_steps", options_.warmup_steps);
  require_at_least(std::max<int64_t>(1, options_.warmup_steps), "WarmupCosine", "total_steps",
                   options_.total_steps);
  require(options_.start_factor >= 0 && options_.start_factor <= 1, "WarmupCosine", "start_factor",
          options_.start_factor, "0 to 1");
  require(options_.end_factor >= 0 && options_.end_factor <= 1, "WarmupCosine", "end_factor",
          options_.end_factor, "0 to 1");
}

double WarmupCosine::factor(int64_t step) const {
  const auto& [warmup, total, start, end] = options_;
  if (step < warmup) {
    return start + (1 - start) * static_cast<double>(step) / static_cast<double>(warmup);
  }
  if (step >= total) return end;
  const double part = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  return end + (1 - end) * half_cosine(part);
}

SWALR::SWALR(SWALROptions options) : options_(std::move(options)) {
  require(!options_.swa_lr.empty(), "SWALR", "swa_lr", "none", "one, or one for each group");
  for (const double rate : options_.swa_lr) require_factor("SWALR", "swa_lr", rate);
  require_at_least(0, "SWALR", "anneal_epochs", options_.anneal_epochs);
  require(options_.anneal_strategy == "cos" || options_.anneal_strategy == "linear", "SWALR",
          "anneal_strategy", options_.anneal_strategy, "cos or linear");
}

double SWALR::rate(double initial, int64_t step, size_t group) const {
  const double last = of_group("SWALR", "swa_lr", options_.swa_lr, group);
  const int64_t epochs = options_.anneal_epochs;
  if (step >= epochs) return last;
  const double part = static_cast<double>(step) / static_cast<double>(epochs);
  const double alpha =
      options_.anneal_strategy == "linear" ? part : (1 - std::cos(std::numbers::pi * part)) / 2;
  return last * alpha + initial * (1 - alpha);
}

}  // namespace bellows::optim
