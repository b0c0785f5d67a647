#include "bellows/amp/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "bellows/amp/autocast.h"
#include "bellows/amp/scaled_optimizer.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::amp {
namespace {

void check(bool good, const char* what, double got, const char* expected) {
  if (!good) throw ValueError(concat("GradScaler: ", what, ": got ", got, ", expected ", expected));
}

void check_scale(const char* what, double value) {
  check(value > 0 && std::isfinite(static_cast<float>(value)), what, value,
        "a finite number above 0");
}

void check_factors(const GradScalerOptions& options) {
  check(options.growth_factor > 1 && std::isfinite(options.growth_factor), "growth_factor",
        options.growth_factor, "a finite number above 1");
  check(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor",
        options.backoff_factor, "a number between 0 and 1");
  check(options.growth_interval >= 1, "growth_interval",
        static_cast<double>(options.growth_interval), "at least 1");
}

// A copy to the host must be complete when it is read.
at::Tensor copy_to(const at::Tensor& tensor, c10::Device device) {
  return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/!device.is_cpu(), /*copy=*/true);
}

// The values to unscale, of sparse gradients too; coalesced in float16, where equal indices may
// overflow only when they are added.
at::Tensor values_of(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.layout() == at::kStrided) return gradient;
  if (gradient.scalar_type() == at::kHalf) gradient = gradient.coalesce();
  return gradient._values();
}

// Gradients of one device and type, as the kernel wants them.
using Gradients = std::vector<at::Tensor>;

std::vector<Gradients> gradients_by_kind(const ScaledOptimizer& optimizer, bool allow_fp16) {
  std::vector<Gradients> kinds;
  for (size_t i = 0; i < optimizer.parameters.size(); ++i) {
    const at::Tensor& gradient = optimizer.parameters[i].grad();
    if (!gradient.defined() || gradient.scalar_type() != at::kHalf || allow_fp16) continue;
    throw ValueError(concat(
        "GradScaler: attempt to unscale float16 gradients: parameter ", optimizer.name(i),
        " has one; keep parameters in float32 and run the forward pass under Autocast, or set "
        "allow_fp16"));
  }
  for (const at::Tensor& parameter : optimizer.parameters) {
    if (!parameter.grad().defined()) continue;
    at::Tensor values = values_of(parameter);
    auto kind = std::ranges::find_if(kinds, [&](const Gradients& other) {
      return other[0].device() == values.device() && other[0].dtype() == values.dtype();
    });
    if (kind == kinds.end()) kind = kinds.emplace(kind);
    kind->push_back(std::move(values));
  }
  if (kinds.empty()) {
    throw ValueError(
        "GradScaler: none of the optimizer's parameters has a gradient; call "
        "scale(loss).backward() first");
  }
  return kinds;
}

std::string first_bad_parameter(const ScaledOptimizer& optimizer) {
  for (size_t i = 0; i < optimizer.parameters.size(); ++i) {
    const at::Tensor& parameter = optimizer.parameters[i];
    if (parameter.grad().defined() && !at::isfinite(values_of(parameter)).all().item<bool>())
      return "the first parameter with such a gradient is " + optimizer.name(i);
  }
  return "the gradients here are finite, those of another rank are not";
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(std::move(options)) {
  if (!options_.enabled) return;
  check_scale("init_scale", options_.init_scale);
  check_factors(options_);
  check(options_.max_consecutive_skips >= 0, "max_consecutive_skips",
        static_cast<double>(options_.max_consecutive_skips), "at least 0");
}

void GradScaler::make_scale(c10::Device device) {
  if (scale_.defined()) return;
  const at::TensorOptions options = at::TensorOptions(device);
  scale_ = at::full({}, options_.init_scale, options.dtype(at::kFloat));
  growth_tracker_ = at::full({}, first_tracker_, options.dtype(at::kInt));
}

void GradScaler::require_scale(const char* call) const {
  if (scale_.defined()) return;
  throw ValueError(concat("GradScaler::", call,
                          ": nothing has been scaled yet; call scale(loss).backward() first"));
}

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!options_.enabled) return outputs;
  if (!outputs.defined()) throw ValueError("GradScaler::scale: the tensor is undefined");
  make_scale(outputs.device());
  return outputs.mul(scale_.to(outputs.device(), at::kFloat, !outputs.is_cpu()));
}

Tree GradScaler::scale(const Tree& outputs) {
  if (!options_.enabled) return outputs;
  if (outputs.is_tensor()) return scale(outputs.tensor());
  if (outputs.is_list()) {
    Tree::List scaled;
    for (const Tree& one : outputs.list()) scaled.push_back(scale(one));
    return scaled;
  }
  if (!outputs.is_dict()) {
    throw ValueError(concat("GradScaler::scale: got ", outputs.kind(),
                            ", expected a tensor, or a list or dictionary of tensors"));
  }
  Tree::Dict scaled;
  for (const auto& [key, value] : outputs.dict()) scaled[key] = scale(value);
  return scaled;
}

void GradScaler::unscale_(optim::Optimizer& optimizer) {
  if (options_.enabled) unscale(scaled(optimizer));
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (options_.enabled) unscale(scaled(optimizer));
}

void GradScaler::unscale(const ScaledOptimizer& optimizer) {
  const c10::NoGradGuard no_grad;
  require_scale("unscale_");
  const auto found = uses_.find(optimizer.identity);
  if (found != uses_.end() && found->second.stage != Stage::ready) {
    throw ValueError(concat("GradScaler::unscale_: this optimizer has ",
                            found->second.stage == Stage::unscaled ? "been unscaled" : "stepped",
                            " since the last update(); call update() at the end of each "
                            "iteration"));
  }
  // Through float64, as the reciprocal in float32 is not exact with all compilers.
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor all = at::zeros({}, scale_.options());
  for (const Gradients& gradients : gradients_by_kind(optimizer, options_.allow_fp16)) {
    const c10::Device device = gradients[0].device();
    at::Tensor found_inf = at::zeros({}, scale_.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, copy_to(inverse, device));
    all.add_(device == all.device() ? found_inf : copy_to(found_inf, all.device()));
  }
  if (options_.reduce_found_inf) options_.reduce_found_inf(all);
  uses_[optimizer.identity] = {Stage::unscaled, all};
}

bool GradScaler::step(optim::Optimizer& optimizer) {
  return step(scaled(optimizer));
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  return step(scaled(optimizer));
}

bool GradScaler::step(const ScaledOptimizer& optimizer) {
  bool skip = false;
  if (options_.enabled) {
    if (optimizer.needs_closure) {
      throw ValueError(
          "GradScaler::step: LBFGS evaluates the loss several times a step, which a scaler cannot "
          "follow; take another optimizer, or a scaler that is not enabled");
    }
    require_scale("step");
    if (uses_[optimizer.identity].stage == Stage::stepped) {
      throw ValueError(
          "GradScaler::step: this optimizer has stepped since the last update(); call update() at "
          "the end of each iteration");
    }
    if (uses_[optimizer.identity].stage == Stage::ready) unscale(optimizer);
    skip = uses_[optimizer.identity].found_inf.item<float>() != 0;
  }
  if (skip) {
    ++skipped_;
    skipped_now_ = true;
  } else {
    optimizer.step();
    clear_autocast_cache();  // LibTorch's own optimizers do not
    ++taken_;
    taken_now_ = true;
  }
  if (options_.enabled) uses_[optimizer.identity].stage = Stage::stepped;
  if (skip) fail_if_too_many(optimizer);
  return !skip;
}

void GradScaler::fail_if_too_many(const ScaledOptimizer& optimizer) const {
  const int64_t limit = options_.max_consecutive_skips;
  if (limit == 0 || consecutive_skips() <= limit) return;
  throw NonFiniteError(concat(
      "gradients are NaN or infinite: ", consecutive_skips(),
      " steps in a row were skipped, max_consecutive_skips is ", limit, "; ",
      first_bad_parameter(optimizer), ". The scale has come down to ", get_scale(),
      ": where it is below 1, float16's range is not the reason. Look at the data and the "
      "learning rate; amp::AnomalyMode names the operator that the first such value comes from"));
}

void GradScaler::update() {
  if (!options_.enabled) return;
  const c10::NoGradGuard no_grad;
  require_scale("update");
  at::Tensor all;
  bool all_good = true;  // as far as the host knows
  for (const auto& [identity, use] : uses_) {
    if (!use.found_inf.defined()) continue;
    all = all.defined() ? all.add(use.found_inf) : use.found_inf;
    all_good = all_good && use.stage == Stage::stepped;
  }
  if (!all.defined()) {
    throw ValueError(
        "GradScaler::update: no optimizer has been unscaled since the last update(); call "
        "step(optimizer) or unscale_(optimizer) first");
  }
  at::_amp_update_scale_(scale_, growth_tracker_, all, options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  if (skipped_now_ || !all_good) scale_.clamp_min_(std::numeric_limits<float>::min());
  end_iteration();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  require_scale("update");
  check_scale("new_scale", new_scale);
  scale_.fill_(new_scale);
  end_iteration();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!options_.enabled) return;
  const c10::NoGradGuard no_grad;
  require_scale("update");
  if (!new_scale.defined() || new_scale.numel() != 1 || new_scale.requires_grad() ||
      new_scale.device().type() != scale_.device().type()) {
    throw ValueError(
        concat("GradScaler::update: expected a new scale of one element, without "
               "requires_grad, on ",
               scale_.device(), ", got ",
               new_scale.defined() ? concat("shape ", new_scale.sizes(), " on ", new_scale.device(),
                                            new_scale.requires_grad() ? " with requires_grad" : "")
                                   : "an undefined tensor"));
  }
  scale_.copy_(new_scale.reshape({}));
  end_iteration();
}

void GradScaler::end_iteration() {
  if (skipped_now_) {
    ++skips_in_a_row_;
  } else if (taken_now_) {
    skips_in_a_row_ = 0;
  }
  skipped_now_ = taken_now_ = false;
  uses_.clear();
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1.0;
  return scale_.defined() ? scale_.item<float>() : options_.init_scale;
}

void GradScaler::set_growth_factor(double factor) {
  GradScalerOptions changed = options_;
  changed.growth_factor = factor;
  check_factors(changed);
  options_ = changed;
}

void GradScaler::set_backoff_factor(double factor) {
  GradScalerOptions changed = options_;
  changed.backoff_factor = factor;
  check_factors(changed);
  options_ = changed;
}

void GradScaler::set_growth_interval(int64_t interval) {
  GradScalerOptions changed = options_;
  changed.growth_interval = interval;
  check_factors(changed);
  options_ = changed;
}

Tree GradScaler::state_dict() const {
  if (!options_.enabled) return Tree::Dict{};
  const int64_t tracker =
      growth_tracker_.defined() ? int64_t{growth_tracker_.item<int32_t>()} : first_tracker_;
  return Tree::Dict{{"scale", get_scale()},
                    {"growth_factor", options_.growth_factor},
                    {"backoff_factor", options_.backoff_factor},
                    {"growth_interval", options_.growth_interval},
                    {"_growth_tracker", tracker}};
}

void GradScaler::load_state_dict(const Tree& state) {
  if (!options_.enabled) return;
  if (state.is_dict() && state.dict().empty()) {
    throw ValueError(
        "GradScaler: the state is empty: it was saved by a scaler that was not enabled; start "
        "without it");
  }
  std::vector<std::string> wrong;
  const Tree own = state_dict();
  for (const auto& [key, value] : own.dict()) {
    if (!state.contains(key)) wrong.push_back(key + " is missing");
  }
  for (const auto& [key, value] : state.dict()) {
    if (!own.contains(key)) wrong.push_back(key + " is unknown");
  }
  if (!wrong.empty()) throw ValueError("GradScaler: state: " + join(wrong));

  GradScalerOptions loaded = options_;
  loaded.init_scale = state.at("scale").number();
  loaded.growth_factor = state.at("growth_factor").number();
  loaded.backoff_factor = state.at("backoff_factor").number();
  loaded.growth_interval = state.at("growth_interval").integer();
  const int64_t tracker = state.at("_growth_tracker").integer();
  check_scale("scale", loaded.init_scale);
  check_factors(loaded);
  check(tracker >= 0 && tracker <= std::numeric_limits<int32_t>::max(), "_growth_tracker",
        static_cast<double>(tracker), "a count of 0 or more");
  options_ = std::move(loaded);
  first_tracker_ = tracker;
  if (!scale_.defined()) return;
  scale_.fill_(options_.init_scale);
  growth_tracker_.fill_(tracker);
}

}  // namespace bellows::amp
