#include "bellows/train/update.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>

#include "bellows/amp/autocast.h"
#include "bellows/amp/master_weights.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/optim/clip.h"

namespace bellows::train {
namespace {

void check_bound(const char* name, double value) {
  if (value >= 0 && std::isfinite(value)) return;
  throw ValueError(concat(name, " must be above 0, or 0 for none; got ", value));
}

NamedTensors parameters_of(const optim::Optimizer& optimizer) {
  NamedTensors all;
  for (size_t group = 0; group < optimizer.group_count(); ++group) {
    const NamedTensors& some = optimizer.parameters(group);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace

Update::Update(optim::Optimizer& optimizer, c10::Device device, const parallel::Group& group,
               UpdateOptions options)
    : optimizer_(optimizer),
      parameters_(parameters_of(optimizer)),
      device_(device),
      options_(std::move(options)),
      settings_(amp::settings_of(options_.precision)) {
  check_bound("clip_norm", options_.clip_norm);
  check_bound("clip_value", options_.clip_value);
  if (settings_.parameters != at::kFloat &&
      dynamic_cast<const amp::MasterWeights*>(&optimizer) == nullptr) {
    throw ValueError(concat("the precision ", amp::precision_name(options_.precision),
                            " needs amp::convert(model's tensors) and an optimizer made by "
                            "amp::MasterWeights, got ",
                            optimizer.name()));
  }
  if (settings_.allow_tf32) amp::set_allow_tf32(true);
  if (!settings_.scaler) return;
  if (group.size() > 1) {
    options_.scaler.reduce_found_inf = [group](at::Tensor& found) {
      group.all_reduce(found, parallel::ReduceOp::max);
    };
  }
  scaler_.emplace(options_.scaler);
}

StepOutput Update::forward(const StepFunction& step, const nn::Model& model,
                           const Tree& batch) const {
  if (settings_.parameters != at::kFloat) {
    return step(model, amp::cast_floating(batch, settings_.parameters));
  }
  if (!settings_.autocast) return step(model, batch);
  const amp::Autocast autocast(device_, {.dtype = settings_.autocast});
  return step(model, batch);
}

void Update::backward(const at::Tensor& loss, double weight) {
  const at::Tensor weighted = weight == 1 ? loss : loss.mul(weight);
  (scaler_ ? scaler_->scale(weighted) : weighted).backward();
}

bool Update::step(double factor) {
  if (scaler_) scaler_->unscale_(optimizer_);
  if (factor != 1) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const auto& [name, parameter] : parameters_) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    }
    if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
  }
  if (options_.clip_value > 0) {
    optim::clip_grad_value_(parameters_, options_.clip_value);
  }
  if (options_.clip_norm > 0) {
    norm_ = optim::clip_grad_norm_(parameters_, options_.clip_norm);
  }
  if (!scaler_) {
    optimizer_.step();
    return true;
  }
  const bool taken = scaler_->step(optimizer_);
  scaler_->update();
  return taken;
}

Values Update::values() const {
  Values values;
  if (scaler_) {
    values["loss_scale"] = scaler_->get_scale();
    values["skipped_steps"] = static_cast<double>(scaler_->steps_skipped());
  }
  if (norm_.defined()) values["grad_norm"] = norm_.item<double>();
  return values;
}

}  // namespace bellows::train
