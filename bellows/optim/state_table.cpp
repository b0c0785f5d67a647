#include "bellows/optim/state_table.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

// Declared here because ATen/autocast_mode.h includes all of ATen.
namespace at::autocast {
TORCH_API void clear_cache();
}

namespace bellows::optim {
namespace {

// Element i of one is element i of the other in memory, too: the fused kernels walk memory.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() &&
         (a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous()));
}

std::string place(const at::Tensor& tensor) {
  return concat(at::toString(tensor.scalar_type()), " on ", tensor.device());
}

}  // namespace

StateTable::StateTable(std::string optimizer, std::vector<NamedTensors> groups,
                       std::vector<std::string> fields)
    : optimizer_(std::move(optimizer)), fields_(std::move(fields)) {
  std::map<std::string, bool> names;
  std::map<const c10::TensorImpl*, std::string> tensors;
  for (NamedTensors& parameters : groups) {
    for (const auto& [name, parameter] : parameters) {
      check(name, parameter);
      if (!names.emplace(name, true).second) {
        throw ValueError(optimizer_ + ": got two parameters named '" + name +
                         "', expected each name once");
      }
      const auto [first, added] = tensors.emplace(parameter.unsafeGetTensorImpl(), name);
      if (!added) {
        throw ValueError(optimizer_ + ": parameters '" + first->second + "' and '" + name +
                         "' are the same tensor; give a tied parameter once");
      }
    }
    groups_.emplace_back();
    groups_.back().state.resize(parameters.size());
    groups_.back().built.resize(parameters.size());
    groups_.back().parameters = std::move(parameters);
  }
  if (tensors.empty()) {
    throw ValueError(optimizer_ + ": got no parameters, expected at least one");
  }
}

void StateTable::check(const std::string& name, const at::Tensor& parameter) const {
  const auto refuse = [&](const std::string& what) {
    throw ValueError(optimizer_ + ": parameter '" + name + "' " + what);
  };
  if (!parameter.defined()) refuse("is undefined");
  if (!at::isFloatingType(parameter.scalar_type())) {
    refuse(concat("has type ", at::toString(parameter.scalar_type()),
                  ", expected a floating-point type"));
  }
  if (!parameter.is_leaf()) {
    refuse("is the result of a computation, expected a leaf; detach it, then requires_grad_()");
  }
  if (parameter.layout() != at::kStrided || !parameter.is_non_overlapping_and_dense()) {
    refuse("does not fill its memory, expected a dense tensor; clone() it first");
  }
}

const NamedTensors& StateTable::parameters(size_t group) const {
  if (group >= groups_.size()) {
    throw ValueError(concat(optimizer_, ": got group ", group, ", expected one of ", groups_.size(),
                            " groups (the first is 0)"));
  }
  return groups_[group].parameters;
}

const std::vector<at::Tensor>& StateTable::state(size_t group, size_t member) const {
  return groups_[group].state[member];
}

void StateTable::set_state(size_t group, size_t member, const std::vector<at::Tensor>& values) {
  Group& target = groups_[group];
  target.stale = true;
  std::vector<at::Tensor>& state = target.state[member];
  state.clear();
  for (size_t field = 0; field < values.size(); ++field) {
    at::Tensor value = values[field];
    if (value.defined()) {
      value = fitted(value, field, target.parameters[member].second);
      if (value.is_same(values[field])) value = value.clone();
    }
    state.push_back(std::move(value));
  }
}

std::span<Batch> StateTable::collect(size_t index, size_t fields) {
  Group& group = groups_.at(index);
  if (!up_to_date(group, fields)) rebuild(group, fields);
  for (Batch& batch : group.batches) {
    batch.gradients.clear();
    for (const size_t member : batch.members) {
      const auto& [name, parameter] = group.parameters[member];
      batch.gradients.push_back(gradient_for(name, parameter));
    }
  }
  return group.batches;
}

void StateTable::release(size_t group) {
  for (Batch& batch : groups_[group].batches) {
    batch.gradients.clear();
    groups_[group].stale = groups_[group].stale || batch.fresh;
  }
}

bool StateTable::up_to_date(const Group& group, size_t fields) const {
  if (group.stale || group.fields != fields) return false;
  for (size_t member = 0; member < group.parameters.size(); ++member) {
    const at::Tensor& parameter = group.parameters[member].second;
    const Built& built = group.built[member];
    if (parameter.grad().defined() != built.active) return false;
    if (built.active &&
        (parameter.device() != built.options.device() ||
         parameter.dtype() != built.options.dtype() || parameter.sizes() != built.sizes ||
         parameter.strides() != built.strides)) {
      return false;
    }
  }
  return true;
}

void StateTable::rebuild(Group& group, size_t fields) {
  group.stale = true;  // until done
  group.batches.clear();
  for (size_t member = 0; member < group.parameters.size(); ++member) {
    const auto& [name, parameter] = group.parameters[member];
    Built& built = group.built[member];
    built.active = parameter.grad().defined();
    if (!built.active) continue;
    check(name, parameter);
    const bool fresh = bring_state(group, member, fields);
    built = {true, parameter.options(), parameter.sizes().vec(), parameter.strides().vec()};
    auto batch = std::ranges::find_if(group.batches, [&](const Batch& other) {
      return other.fresh == fresh && other.parameters[0].device() == parameter.device() &&
             other.parameters[0].scalar_type() == parameter.scalar_type();
    });
    if (batch == group.batches.end()) {
      batch = group.batches.emplace(batch);
      batch->fresh = fresh;
      batch->state.resize(fields);
    }
    batch->members.push_back(member);
    batch->parameters.push_back(parameter);
    for (size_t field = 0; field < fields; ++field) {
      batch->state[field].push_back(group.state[member][field]);
    }
  }
  group.fields = fields;
  group.stale = false;
}

// Makes, moves or re-lays the first `fields` fields of a parameter's state; whether any was made.
bool StateTable::bring_state(Group& group, size_t member, size_t fields) {
  const auto& [name, parameter] = group.parameters[member];
  std::vector<at::Tensor>& state = group.state[member];
  if (state.size() < fields) state.resize(fields);
  bool made = false;
  for (size_t field = 0; field < state.size(); ++field) {
    if (state[field].defined()) {
      state[field] = fitted(state[field], field, parameter);
    } else if (field < fields) {
      made = true;
      state[field] = fields_[field] == "step"
                         ? at::zeros({}, parameter.options().dtype(at::kFloat).requires_grad(false))
                         : at::zeros_like(parameter, at::TensorOptions().requires_grad(false),
                                          at::MemoryFormat::Preserve);
    }
  }
  return made;
}

// `value` itself where it fits the parameter already.
at::Tensor StateTable::fitted(const at::Tensor& value, size_t field,
                              const at::Tensor& parameter) const {
  if (fields_[field] == "step") {
    return value.detach().to(parameter.device(), at::kFloat);
  }
  if (value.sizes() != parameter.sizes()) {
    throw ValueError(concat(optimizer_, ": ", fields_[field], " has shape ", value.sizes(),
                            ", its parameter ", parameter.sizes(),
                            "; a parameter cannot change its shape under an optimizer"));
  }
  if (value.device() == parameter.device() && value.scalar_type() == parameter.scalar_type() &&
      same_layout(value, parameter)) {
    return value;
  }
  return at::empty_like(parameter, at::TensorOptions().requires_grad(false),
                        at::MemoryFormat::Preserve)
      .copy_(value);
}

at::Tensor StateTable::gradient_for(const std::string& name, const at::Tensor& parameter) const {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.layout() != at::kStrided) {
    throw ValueError(concat(optimizer_, ": the gradient of '", name, "' is ", gradient.layout(),
                            ", expected a dense one"));
  }
  if (gradient.device() != parameter.device() ||
      gradient.scalar_type() != parameter.scalar_type()) {
    throw ValueError(concat(optimizer_, ": parameter '", name, "' is ", place(parameter),
                            ", its gradient ", place(gradient),
                            "; move a model before backward(), or zero_grad() after the move"));
  }
  if (same_layout(gradient, parameter)) return gradient;
  return at::empty_like(parameter, at::TensorOptions().requires_grad(false),
                        at::MemoryFormat::Preserve)
      .copy_(gradient);
}

void advance(std::vector<at::Tensor>& steps) {
  if (!steps[0].is_cpu()) {
    at::_foreach_add_(steps, 1);
    return;
  }
  for (at::Tensor& step : steps) *step.mutable_data_ptr<float>() += 1;
}

void drop_autocast_casts() {
  at::autocast::clear_cache();
}

void check_range(const std::string& optimizer, const char* key, double value, double low,
                 double high) {
  if (value >= low && value <= high && std::isfinite(value)) return;
  throw ValueError(concat(optimizer, ": ", key, ": got ", value, ", expected ",
                          std::isinf(high) ? concat("a finite number of at least ", low)
                                           : concat("a number from ", low, " to ", high)));
}

}  // namespace bellows::optim
