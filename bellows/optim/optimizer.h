// Optimizers: parameter groups, state by parameter name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/core/options.h"
#include "bellows/tree/stateful.h"

namespace torch::optim {
class Optimizer;
}

namespace bellows::optim {

/// Updates parameters in place from their gradients. Parameters without a gradient are left alone,
/// their state too. One thread at a time. State is kept and saved by parameter name, so that
/// neither the order nor the grouping of parameters matters when it is loaded.
class Optimizer : public Stateful {
 public:
  /// "SGD", "AdamW", …
  virtual std::string_view name() const = 0;
  /// One update. Gradients are read, not changed. Casts that autocast has cached are dropped, as
  /// they are stale afterwards.
  virtual void step() = 0;
  /// Drops gradients (as PyTorch's default) or zeroes them. Gradients that are views (of a
  /// communication bucket) are always zeroed in place, so that they stay views.
  virtual void zero_grad(bool set_to_none = true);

  virtual size_t group_count() const = 0;
  virtual const NamedTensors& parameters(size_t group) const = 0;
  virtual double lr(size_t group) const = 0;
  /// Throws ValueError for a negative, infinite or NaN rate.
  virtual void set_lr(size_t group, double lr) = 0;

  // From Stateful: {"name", "groups": [{"lr", …, "params": [names]}], "state": {name: {"step",
  // …}}}. load_state_dict also refuses, with both names, the state of another kind of optimizer.
};

/// Parameters with options of their own.
template <class OptimizerOptions>
struct ParamGroup {
  NamedTensors parameters;
  OptimizerOptions options = {};
};

/// Any optimizer of LibTorch, so that every part that takes an Optimizer takes it too. `names`
/// gives every parameter its name (pass the model's named_parameters()); a parameter without one is
/// a ValueError. The adapted optimizer must outlive the result, and gets no further groups
/// meanwhile. The state of SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS can be saved and loaded,
/// that of other kinds is a ValueError. LBFGS steps only by its own `step(closure)`.
std::unique_ptr<Optimizer> adapt(torch::optim::Optimizer& optimizer, const NamedTensors& names);

/// By configuration: `name` ("sgd" or "adamw", or as PyTorch spells them; default "adamw"), `lr`
/// and that optimizer's further options. One group. Throws ValueError naming the key. The caller
/// rejects unknown keys.
std::unique_ptr<Optimizer> make_optimizer(Options& options, NamedTensors parameters);

/// Scales gradients in place so that their joint 2-norm is at most max_norm: coefficient
/// max_norm / (norm + 1e-6), at most 1. Returns the norm before, as a 0-dim tensor on the
/// gradients' device, without waiting for the device; a norm that is not finite makes the gradients
/// NaN or zero. Throws ValueError for a negative or NaN max_norm. Source:
/// torch/nn/utils/clip_grad.py.
at::Tensor clip_grad_norm_(const NamedTensors& parameters, double max_norm);

}  // namespace bellows::optim
