// Optimizers: parameter groups, state by parameter name.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/core/options.h"
#include "bellows/optim/clip.h"
#include "bellows/tree/stateful.h"

namespace torch::optim {
class Optimizer;
}

namespace bellows::optim {

/// Zeroes or drops gradients, computes the loss and its gradients, and returns the loss.
using LossClosure = std::function<at::Tensor()>;

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
  /// Calls `closure` with gradients on, then steps; LBFGS calls it several times. Returns the loss
  /// before the step.
  virtual at::Tensor step(const LossClosure& closure);
  /// Drops gradients (as PyTorch's default) or zeroes them. Gradients that are views (of a
  /// communication bucket) are always zeroed in place, so that they stay views.
  virtual void zero_grad(bool set_to_none = true);

  virtual size_t group_count() const = 0;
  virtual const NamedTensors& parameters(size_t group) const = 0;
  virtual double lr(size_t group) const = 0;
  /// Throws ValueError for a negative, infinite or NaN rate.
  virtual void set_lr(size_t group, double lr) = 0;
  /// What schedules cycle as momentum: the first of `betas`, or `momentum`. Nothing where there is
  /// neither.
  virtual std::optional<double> momentum(size_t group) const;
  /// Throws ValueError where there is none, and for a value out of its range.
  virtual void set_momentum(size_t group, double momentum);

  /// The rate that a schedule began with, which LRScheduler sets; saved as the group's
  /// "initial_lr".
  std::optional<double> initial_lr(size_t group) const;
  void set_initial_lr(size_t group, double lr);

  // From Stateful: {"name", "groups": [{"lr", …, "params": [names]}], "state": {name: {"step",
  // …}}}. load_state_dict also refuses, with both names, the state of another kind of optimizer.

 protected:
  void write_initial_lr(size_t group, Tree::Dict& saved) const;
  /// Where the saved group has none, it stays as it is.
  void read_initial_lr(size_t group, const Tree& saved);

 private:
  std::vector<std::optional<double>> initial_lr_;
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
/// that of other kinds is a ValueError. LBFGS steps only with a closure.
std::unique_ptr<Optimizer> adapt(torch::optim::Optimizer& optimizer, const NamedTensors& names);

/// By configuration: `name` (PyTorch's, in upper or lower case; default "adamw"), `lr`, that
/// optimizer's further options under PyTorch's names, and `implementation` ("auto", "fused",
/// "foreach", "single", as far as it has them). One group. Throws ValueError naming the key; also
/// for LBFGS, which needs a closure. The caller rejects unknown keys.
std::unique_ptr<Optimizer> make_optimizer(Options& options, NamedTensors parameters);

}  // namespace bellows::optim
