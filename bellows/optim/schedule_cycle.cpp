#include "bellows/optim/schedule_cycle.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "bellows/optim/schedule_checks.h"

namespace bellows::optim {
namespace {

void require_list(const char* schedule, const char* key, const std::vector<double>& values) {
  require(!values.empty(), schedule, key, "none", "one, or one for each group");
  for (const double value : values) require_factor(schedule, key, value);
}

}  // namespace

CyclicLR::CyclicLR(CyclicLROptions options) : options_(std::move(options)) {
  constexpr const char* kName = "CyclicLR";
  require_list(kName, "base_lr", options_.base_lr);
  require_list(kName, "max_lr", options_.max_lr);
  require_list(kName, "base_momentum", options_.base_momentum);
  require_list(kName, "max_momentum", options_.max_momentum);
  require_at_least(1, kName, "step_size_up", options_.step_size_up);
  require_at_least(1, kName, "step_size_down",
                   options_.step_size_down.value_or(options_.step_size_up));
  require_factor(kName, "gamma", options_.gamma);
  require(options_.scale_mode == "cycle" || options_.scale_mode == "iterations", kName,
          "scale_mode", options_.scale_mode, "cycle or iterations");
  if (options_.scale_fn) return;
  const double gamma = options_.gamma;
  if (options_.mode == "triangular") {
    options_.scale_fn = [](double) { return 1.0; };
    options_.scale_mode = "cycle";
  } else if (options_.mode == "triangular2") {
    options_.scale_fn = [](double cycle) { return 1 / std::pow(2.0, cycle - 1); };
    options_.scale_mode = "cycle";
  } else {
    require(options_.mode == "exp_range", kName, "mode", options_.mode,
            "triangular, triangular2 or exp_range");
    options_.scale_fn = [gamma](double step) { return std::pow(gamma, step); };
    options_.scale_mode = "iterations";
  }
}

// Where between base and maximum a step is.
double CyclicLR::height(int64_t step) const {
  const auto up = static_cast<double>(options_.step_size_up);
  const double size =
      up + static_cast<double>(options_.step_size_down.value_or(options_.step_size_up));
  const double ratio = up / size;
  const auto done = static_cast<double>(step);
  const double cycle = std::floor(1 + done / size);
  const double x = 1.0 + done / size - cycle;
  const double scale = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
  return scale * options_.scale_fn(options_.scale_mode == "cycle" ? cycle : done);
}

double CyclicLR::rate(double /*initial*/, int64_t step, size_t group) const {
  const double base = of_group("CyclicLR", "base_lr", options_.base_lr, group);
  return base + (of_group("CyclicLR", "max_lr", options_.max_lr, group) - base) * height(step);
}

std::optional<double> CyclicLR::momentum(int64_t step, size_t group) const {
  if (!options_.cycle_momentum) return std::nullopt;
  const double most = of_group("CyclicLR", "max_momentum", options_.max_momentum, group);
  const double base = of_group("CyclicLR", "base_momentum", options_.base_momentum, group);
  return most - (most - base) * height(step);
}

OneCycleLR::OneCycleLR(OneCycleLROptions options) : options_(std::move(options)) {
  constexpr const char* kName = "OneCycleLR";
  require_list(kName, "max_lr", options_.max_lr);
  require_list(kName, "base_momentum", options_.base_momentum);
  require_list(kName, "max_momentum", options_.max_momentum);
  if (options_.total_steps == 0) {
    options_.total_steps = options_.epochs * options_.steps_per_epoch;
  }
  require(options_.total_steps > 0, kName, "total_steps", options_.total_steps,
          "at least 1, or epochs and steps_per_epoch");
  require(options_.pct_start >= 0 && options_.pct_start <= 1, kName, "pct_start",
          options_.pct_start, "0 to 1");
  require(options_.anneal_strategy == "cos" || options_.anneal_strategy == "linear", kName,
          "anneal_strategy", options_.anneal_strategy, "cos or linear");
  for (const auto& [key, value] : {std::pair{"div_factor", options_.div_factor},
                                   std::pair{"final_div_factor", options_.final_div_factor}}) {
    require(value > 0 && std::isfinite(value), kName, key, value, "a finite number above 0");
  }
  const auto total = static_cast<double>(options_.total_steps);
  ends_.push_back(options_.pct_start * total - 1);
  if (options_.three_phase) ends_.push_back(2 * options_.pct_start * total - 2);
  ends_.push_back(total - 1);
}

OneCycleLR::Place OneCycleLR::place(int64_t step) const {
  if (step > options_.total_steps) {
    throw ValueError(concat("OneCycleLR: got step ", step,
                            ", expected at most total_steps = ", options_.total_steps));
  }
  const auto now = static_cast<double>(step);
  size_t phase = 0;
  while (phase + 1 < ends_.size() && now > ends_[phase]) ++phase;
  const double start = phase == 0 ? 0 : ends_[phase - 1];
  const double length = ends_[phase] - start;
  return {phase, length == 0 ? 1 : std::min(1.0, (now - start) / length)};
}

double OneCycleLR::between(double start, double end, double part) const {
  if (options_.anneal_strategy == "linear") return (end - start) * part + start;
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * part) + 1);
}

double OneCycleLR::rate(double /*initial*/, int64_t step, size_t group) const {
  const double most = of_group("OneCycleLR", "max_lr", options_.max_lr, group);
  const double first = most / options_.div_factor;
  const double last = first / options_.final_div_factor;
  const auto [phase, part] = place(step);
  if (phase == 0) return between(first, most, part);
  if (phase + 1 < ends_.size()) return between(most, first, part);
  return between(options_.three_phase ? first : most, last, part);
}

std::optional<double> OneCycleLR::momentum(int64_t step, size_t group) const {
  if (!options_.cycle_momentum) return std::nullopt;
  const double most = of_group("OneCycleLR", "max_momentum", options_.max_momentum, group);
  const double base = of_group("OneCycleLR", "base_momentum", options_.base_momentum, group);
  const auto [phase, part] = place(step);
  if (phase == 0) return between(most, base, part);
  if (phase == 1) return between(base, most, part);
  return most;
}

}  // namespace bellows::optim
