// What the formulas of several optimizers share, over lists of tensors. For the sources of
// optimizers.
#pragma once

#include <cstdint>

#include <c10/core/Scalar.h>

#include "bellows/optim/state_table.h"

namespace bellows::optim {

/// How many lists `with_decay` needs besides those that the formula itself does: none where it
/// would give back the gradients.
constexpr size_t lists_for_decay(bool maximize, double weight_decay) {
  return maximize || weight_decay != 0 ? 1 : 0;
}

/// The gradients, negated where `maximize` says so, plus weight_decay times the parameters:
/// themselves where nothing is to be done, otherwise in work list `work`.
TensorVector& with_decay(Batch& batch, bool maximize, double weight_decay, size_t work);

/// The values of `source` in work list `work`; nothing happens where they are there already.
TensorVector& copied(Batch& batch, const TensorVector& source, size_t work);

/// The value of a count or number (float32); waits for the device where it lies on one.
double value_of(const at::Tensor& number);

/// fn(step) for each count.
template <class Fn>
std::vector<c10::Scalar> by_step(const TensorVector& steps, Fn fn) {
  std::vector<c10::Scalar> values;
  values.reserve(steps.size());
  for (const at::Tensor& step : steps) values.emplace_back(fn(value_of(step)));
  return values;
}

/// For every tensor `a` and `b` of the lists, scale |a| / (|b| + scale_of_a |a|) as 0-dim
/// tensors on their device, or 1 where |a| or |b| is 0. All of one device and type; nothing waits
/// for the device.
TensorVector norm_ratios(const TensorVector& a, const TensorVector& b, double scale = 1,
                         double scale_of_a = 0);

}  // namespace bellows::optim
