#include "bellows/optim/averaged_model.h"

#include <algorithm>
#include <set>

#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::optim {
namespace {

using TensorVector = std::vector<at::Tensor>;

bool of_one_kind(const at::Tensor& a, const at::Tensor& b) {
  return a.device() == b.device() && a.scalar_type() == b.scalar_type();
}

at::Tensor own_copy(const at::Tensor& tensor) {
  return at::empty_like(tensor, at::TensorOptions().requires_grad(false)).copy_(tensor.detach());
}

}  // namespace

AveragedModel::AveragedModel(NamedTensors parameters, NamedTensors buffers,
                             AveragedModelOptions options)
    : model_(std::move(parameters)), parameters_(model_.size()), options_(options) {
  const c10::NoGradGuard no_grad;
  const double decay = options_.ema_decay.value_or(0);
  if (!(decay >= 0 && decay <= 1)) {
    throw ValueError(concat("AveragedModel: ema_decay: got ", decay, ", expected 0 to 1"));
  }
  if (model_.empty()) throw ValueError("AveragedModel: got no parameters");
  model_.insert(model_.end(), buffers.begin(), buffers.end());
  std::set<std::string> names;
  for (const auto& [name, tensor] : model_) {
    if (!names.insert(name).second) {
      throw ValueError("AveragedModel: got two tensors named '" + name + "'");
    }
    averages_.emplace_back(name, own_copy(tensor));
  }
}

// Moves the averages to where the model is now.
void AveragedModel::follow() {
  for (size_t i = 0; i < model_.size(); ++i) {
    at::Tensor& average = averages_[i].second;
    const at::Tensor& tensor = model_[i].second;
    if (average.sizes() != tensor.sizes()) {
      throw ValueError(concat("AveragedModel: '", model_[i].first, "' has shape ", tensor.sizes(),
                              ", its average ", average.sizes()));
    }
    if (!of_one_kind(average, tensor)) {
      average = average.to(tensor.device(), tensor.scalar_type());
    }
  }
}

double AveragedModel::weight() const {
  // The equal average's in float32, as Python has it.
  return options_.ema_decay ? 1 - *options_.ema_decay
                            : double{1.0F / static_cast<float>(count_ + 1)};
}

void AveragedModel::average(const TensorVector& averages, const TensorVector& values) const {
  if (at::isFloatingType(averages[0].scalar_type()) ||
      at::isComplexType(averages[0].scalar_type())) {
    at::_foreach_lerp_(averages, values, weight());
    return;
  }
  for (size_t i = 0; i < averages.size(); ++i) {
    averages[i].copy_(averages[i].mul(1 - weight()).add_(values[i].mul(weight())));
  }
}

void AveragedModel::update_parameters() {
  const c10::NoGradGuard no_grad;
  follow();
  const size_t averaged = count_ == 0 ? 0 : options_.use_buffers ? model_.size() : parameters_;
  std::vector<std::pair<TensorVector, TensorVector>> kinds;
  for (size_t i = 0; i < model_.size(); ++i) {
    const at::Tensor& average = averages_[i].second;
    const at::Tensor value = model_[i].second.detach();
    if (i >= averaged) {
      average.copy_(value);
      continue;
    }
    auto kind = std::ranges::find_if(
        kinds, [&](const auto& other) { return of_one_kind(other.first[0], average); });
    if (kind == kinds.end()) kind = kinds.emplace(kind);
    kind->first.push_back(average);
    kind->second.push_back(value);
  }
  for (const auto& [averages, values] : kinds) average(averages, values);
  ++count_;
}

void AveragedModel::swap() {
  const c10::NoGradGuard no_grad;
  follow();
  for (size_t i = 0; i < model_.size(); ++i) {
    at::Tensor tensor = model_[i].second.detach();
    const at::Tensor value = tensor.clone();
    tensor.copy_(averages_[i].second);
    averages_[i].second.copy_(value);
  }
}

Tree AveragedModel::state_dict() const {
  Tree::Dict averages;
  for (const auto& [name, average] : averages_) averages[name] = average;
  return Tree::Dict{{"n_averaged", count_}, {"averages", std::move(averages)}};
}

void AveragedModel::load_state_dict(const Tree& state) {
  const c10::NoGradGuard no_grad;
  const int64_t count = state.at("n_averaged").integer();
  const Tree::Dict& saved = state.at("averages").dict();
  std::vector<std::string> wrong;
  std::set<std::string> names;
  for (const auto& [name, average] : averages_) {
    names.insert(name);
    const auto found = saved.find(name);
    if (found == saved.end()) {
      wrong.push_back(name + " is missing");
    } else if (!found->second.is_tensor() || found->second.tensor().sizes() != average.sizes()) {
      wrong.push_back(concat(name, " is no tensor of shape ", average.sizes()));
    }
  }
  for (const auto& [name, value] : saved) {
    if (!names.contains(name)) wrong.push_back(name + " is unexpected");
  }
  if (!wrong.empty()) {
    throw ValueError("AveragedModel: the saved state does not fit: " + join(wrong));
  }
  for (const auto& [name, average] : averages_) average.copy_(saved.find(name)->second.tensor());
  count_ = count;
}

}  // namespace bellows::optim
