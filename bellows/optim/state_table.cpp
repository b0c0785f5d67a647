#include "bellows/optim/state_table.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

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

at::Tensor like(const at::Tensor& parameter) {
  return at::empty_like(parameter, at::TensorOptions().requires_grad(false),
                        at::MemoryFormat::Preserve);
}

c10::Device device_of(Extent extent, const at::Tensor& parameter, bool count_on_device) {
  const bool away = extent == Extent::number || (extent == Extent::count && !count_on_device);
  return away ? c10::Device(c10::kCPU) : parameter.device();
}

// Whether lists built for one serve the other.
bool same_lists(const StateNeeds& a, const StateNeeds& b) {
  return std::ranges::equal(a.fields, b.fields, {}, &FieldUse::used, &FieldUse::used) &&
         a.work == b.work && a.one_by_one == b.one_by_one &&
         a.counts_on_device == b.counts_on_device;
}

bool of_one_kind(const at::Tensor& a, const at::Tensor& b) {
  return a.device() == b.device() && a.scalar_type() == b.scalar_type();
}

}  // namespace

bool is_number(Extent extent) {
  return extent == Extent::count || extent == Extent::number || extent == Extent::device_number;
}

bool applies(Extent extent, const at::Tensor& parameter) {
  if (extent == Extent::rows || extent == Extent::columns) return parameter.dim() > 1;
  return extent != Extent::vector || parameter.dim() < 2;
}

std::vector<int64_t> sizes_of(Extent extent, const at::Tensor& parameter) {
  if (is_number(extent)) return {};
  std::vector<int64_t> sizes = parameter.sizes().vec();
  if (extent == Extent::rows) sizes[sizes.size() - 1] = 1;
  if (extent == Extent::columns) sizes[sizes.size() - 2] = 1;
  return sizes;
}

StateTable::StateTable(const StateLayout& layout, std::vector<NamedTensors> groups)
    : layout_(layout) {
  std::map<std::string, bool> names;
  std::map<const c10::TensorImpl*, std::string> tensors;
  for (NamedTensors& parameters : groups) {
    for (const auto& [name, parameter] : parameters) {
      check(name, parameter);
      if (!names.emplace(name, true).second) {
        throw ValueError(layout_.optimizer + ": got two parameters named '" + name +
                         "', expected each name once");
      }
      const auto [first, added] = tensors.emplace(parameter.unsafeGetTensorImpl(), name);
      if (!added) {
        throw ValueError(layout_.optimizer + ": parameters '" + first->second + "' and '" + name +
                         "' are the same tensor; give a tied parameter once");
      }
    }
    groups_.emplace_back();
    groups_.back().state.resize(parameters.size());
    groups_.back().built.resize(parameters.size());
    groups_.back().parameters = std::move(parameters);
  }
  if (tensors.empty()) {
    throw ValueError(layout_.optimizer + ": got no parameters, expected at least one");
  }
}

void StateTable::check(const std::string& name, const at::Tensor& parameter) const {
  const auto refuse = [&](const std::string& what) {
    throw ValueError(layout_.optimizer + ": parameter '" + name + "' " + what);
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
    throw ValueError(concat(layout_.optimizer, ": got group ", group, ", expected one of ",
                            groups_.size(), " groups (the first is 0)"));
  }
  return groups_[group].parameters;
}

const TensorVector& StateTable::state(size_t group, size_t member) const {
  return groups_[group].state[member];
}

void StateTable::set_state(size_t group, size_t member, const TensorVector& values) {
  Group& target = groups_[group];
  target.stale = true;
  TensorVector& state = target.state[member];
  state.clear();
  for (size_t field = 0; field < values.size(); ++field) {
    at::Tensor value = values[field];
    if (value.defined()) {
      value = fitted(value, field, target.parameters[member].second, target.needs.counts_on_device);
      if (value.is_same(values[field])) value = value.clone();
    }
    state.push_back(std::move(value));
  }
}

std::span<Batch> StateTable::collect(size_t index, const StateNeeds& needs) {
  Group& group = groups_.at(index);
  if (!up_to_date(group, needs)) {
    group.needs = needs;
    rebuild(group);
  }
  for (Batch& batch : group.batches) {
    batch.gradients.clear();
    for (const size_t member : batch.members) {
      const auto& [name, parameter] = group.parameters[member];
      batch.gradients.push_back(gradient_for(name, parameter));
    }
  }
  return group.batches;
}

void StateTable::release(size_t index) {
  Group& group = groups_[index];
  for (Batch& batch : group.batches) {
    batch.gradients.clear();
    // Those that came late join the others, unless there is nothing to join.
    group.stale =
        group.stale || (batch.fresh && group.batches.size() > 1 && !group.needs.one_by_one);
    batch.fresh = false;
  }
}

bool StateTable::up_to_date(const Group& group, const StateNeeds& needs) const {
  if (group.stale || !same_lists(group.needs, needs)) return false;
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

void StateTable::rebuild(Group& group) {
  group.stale = true;  // until done
  group.batches.clear();
  for (size_t member = 0; member < group.parameters.size(); ++member) {
    const auto& [name, parameter] = group.parameters[member];
    Built& built = group.built[member];
    built.active = parameter.grad().defined();
    if (!built.active) continue;
    check(name, parameter);
    const bool fresh = bring_state(group, member);
    built = {true, parameter.options(), parameter.sizes().vec(), parameter.strides().vec()};
    const TensorVector& state = group.state[member];
    uint64_t present = 0;
    for (size_t field = 0; field < state.size(); ++field) {
      const bool here = group.needs.fields[field].used && state[field].defined();
      present |= static_cast<uint64_t>(here) << field;
    }
    Batch& batch = batch_for(group, parameter, fresh, present);
    batch.members.push_back(member);
    batch.parameters.push_back(parameter);
    for (size_t field = 0; field < state.size(); ++field) {
      if ((present >> field & 1) != 0) batch.state[field].push_back(state[field]);
    }
  }
  make_work(group);
  group.stale = false;
}

// The batch that the parameter joins, made where there is none.
Batch& StateTable::batch_for(Group& group, const at::Tensor& parameter, bool fresh,
                             uint64_t present) const {
  const auto fits = [&](const Batch& batch) {
    for (size_t field = 0; field < batch.state.size(); ++field) {
      if (batch.state[field].empty() == ((present >> field & 1) != 0)) return false;
    }
    return batch.fresh == fresh && of_one_kind(batch.parameters[0], parameter);
  };
  const auto found =
      group.needs.one_by_one ? group.batches.end() : std::ranges::find_if(group.batches, fits);
  if (found != group.batches.end()) return *found;
  Batch& batch = group.batches.emplace_back();
  batch.fresh = fresh;
  batch.state.resize(layout_.fields.size());
  return batch;
}

// Lists for intermediate values. Parameters that come one by one take the memory of the largest.
void StateTable::make_work(Group& group) {
  for (Batch& batch : group.batches) {
    batch.work.resize(group.needs.work);
    for (TensorVector& list : batch.work) {
      for (const at::Tensor& parameter : batch.parameters) {
        list.push_back(group.needs.one_by_one ? at::Tensor() : like(parameter));
      }
    }
  }
  for (size_t list = 0; group.needs.one_by_one && list < group.needs.work; ++list) {
    for (Batch& batch : group.batches) {
      at::Tensor& own = batch.work[list][0];
      if (own.defined()) continue;
      const at::Tensor& first = batch.parameters[0];
      const auto shares = [&](const Batch& other) {
        return of_one_kind(other.parameters[0], first);
      };
      int64_t largest = 0;
      for (const Batch& other : group.batches) {
        if (shares(other)) largest = std::max(largest, other.parameters[0].numel());
      }
      const at::Tensor memory = at::empty({largest}, first.options().requires_grad(false));
      for (Batch& other : group.batches) {
        const at::Tensor& parameter = other.parameters[0];
        if (!shares(other)) continue;
        other.work[list][0] = memory.as_strided(parameter.sizes(), parameter.strides());
      }
    }
  }
}

// Makes, moves or re-lays a parameter's state; whether any was made.
bool StateTable::bring_state(Group& group, size_t member) {
  const at::Tensor& parameter = group.parameters[member].second;
  TensorVector& state = group.state[member];
  state.resize(layout_.fields.size());
  bool any = false;
  for (size_t field = 0; field < state.size(); ++field) {
    if (state[field].defined()) {
      state[field] = fitted(state[field], field, parameter, group.needs.counts_on_device);
    } else if (group.needs.fields[field].used && applies(layout_.fields[field].extent, parameter)) {
      any = true;
      state[field] = made(parameter, field, group.needs);
    }
  }
  return any;
}

at::Tensor StateTable::made(const at::Tensor& parameter, size_t field,
                            const StateNeeds& needs) const {
  const Extent extent = layout_.fields[field].extent;
  const double initial = needs.fields[field].initial;
  if (extent == Extent::parameter || extent == Extent::vector) {
    return like(parameter).fill_(initial);
  }
  at::TensorOptions options = parameter.options()
                                  .requires_grad(false)
                                  .memory_format(std::nullopt)
                                  .device(device_of(extent, parameter, needs.counts_on_device));
  if (is_number(extent)) options = options.dtype(at::kFloat);
  return at::full(sizes_of(extent, parameter), initial, options);
}

// `value` itself where it fits the parameter already.
at::Tensor StateTable::fitted(const at::Tensor& value, size_t field, const at::Tensor& parameter,
                              bool count_on_device) const {
  const auto& [name, extent] = layout_.fields[field];
  if (is_number(extent)) {
    return value.detach().reshape({}).to(device_of(extent, parameter, count_on_device), at::kFloat);
  }
  const std::vector<int64_t> sizes = sizes_of(extent, parameter);
  if (value.sizes() != sizes) {
    throw ValueError(concat(layout_.optimizer, ": ", name, " has shape ", value.sizes(),
                            ", its parameter ", parameter.sizes(),
                            "; a parameter cannot change its shape under an optimizer"));
  }
  if (extent == Extent::rows || extent == Extent::columns) {
    return value.detach().to(parameter.device(), parameter.scalar_type()).contiguous();
  }
  if (of_one_kind(value, parameter) && same_layout(value, parameter)) return value;
  return like(parameter).copy_(value);
}

at::Tensor StateTable::gradient_for(const std::string& name, const at::Tensor& parameter) const {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.layout() != at::kStrided) {
    throw ValueError(concat(layout_.optimizer, ": the gradient of '", name, "' is ",
                            gradient.layout(), ", expected a dense one"));
  }
  if (gradient.device() != parameter.device() ||
      gradient.scalar_type() != parameter.scalar_type()) {
    throw ValueError(concat(layout_.optimizer, ": parameter '", name, "' is ", place(parameter),
                            ", its gradient ", place(gradient),
                            "; move a model before backward(), or zero_grad() after the move"));
  }
  if (same_layout(gradient, parameter)) return gradient;
  return like(parameter).copy_(gradient);
}

void advance(TensorVector& steps) {
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
