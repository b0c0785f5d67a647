// What optimizers with options per group have in common: checks of the parameters, options, and
// state by name.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bellows/optim/optimizer.h"
#include "bellows/optim/option_visitor.h"
#include "bellows/optim/state_layout.h"

namespace bellows::optim {

class StateTable;
struct Batch;

/// Parameters and state, saved and loaded by name. When a model has been moved to another device or
/// type, or given another layout, the state follows at the next step. Gradients that are sparse are
/// a ValueError with the parameter's name.
class NamedStateOptimizer : public Optimizer {
 public:
  ~NamedStateOptimizer() override;
  std::string_view name() const override;
  void step() final;
  using Optimizer::step;
  size_t group_count() const override;
  const NamedTensors& parameters(size_t group) const override;
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 protected:
  /// Throws ValueError for no parameters, a name used twice, a tensor given twice (tied parameters
  /// are given once), and a parameter that is no leaf, not floating-point, or not dense.
  NamedStateOptimizer(const StateLayout& layout, std::vector<NamedTensors> groups);

  /// One step of parameters of one group that go together. Gradients are off.
  virtual void update(size_t group, Batch& batch) = 0;
  virtual StateNeeds needs(size_t group) const = 0;

  virtual Tree::Dict options_tree(size_t group) const = 0;
  /// Takes over saved options, one for each group (null: keeps its own). Throws ValueError, before
  /// anything has changed, for options out of range.
  virtual void load_options(const std::vector<const Tree*>& saved) = 0;
  virtual StateNeeds needs(const Tree& options) const = 0;

 private:
  std::unique_ptr<StateTable> table_;
};

/// With options O per group. Beside O stand, found by argument: `visit_options(visitor, O&)`,
/// `state_layout(O)` and `state_needs(O)`; O has `lr` and default values. The constructors throw
/// ValueError for options out of PyTorch's ranges, and as NamedStateOptimizer.
template <class O>
class GroupedOptimizer : public NamedStateOptimizer {
 public:
  explicit GroupedOptimizer(NamedTensors parameters, O options = {})
      : GroupedOptimizer(std::vector<ParamGroup<O>>{{std::move(parameters), std::move(options)}}) {}
  explicit GroupedOptimizer(const std::vector<ParamGroup<O>>& groups)
      : NamedStateOptimizer(state_layout(O()), parameters_of(groups)) {
    for (const ParamGroup<O>& group : groups) options_.push_back(group.options);
  }

  double lr(size_t group) const override { return options(group).lr; }
  void set_lr(size_t group, double lr) override {
    O changed = options(group);
    changed.lr = lr;
    set_options(group, changed);
  }
  std::optional<double> momentum(size_t group) const override {
    const O& own = options(group);
    if constexpr (requires { own.betas; }) return own.betas[0];
    if constexpr (requires { own.momentum; }) return own.momentum;
    return std::nullopt;
  }
  void set_momentum(size_t group, double momentum) override {
    O changed = options(group);
    if constexpr (requires { changed.betas; }) {
      changed.betas[0] = momentum;
    } else if constexpr (requires { changed.momentum; }) {
      changed.momentum = momentum;
    } else {
      NamedStateOptimizer::set_momentum(group, momentum);  // throws
    }
    set_options(group, changed);
  }
  const O& options(size_t group) const {
    static_cast<void>(parameters(group));  // throws where there is no such group
    return options_[group];
  }
  /// Changes a group's options from the next step on. Throws ValueError as the constructor.
  void set_options(size_t group, const O& changed) {
    check(changed);
    static_cast<void>(options(group));
    options_[group] = changed;
  }

 private:
  static void check(const O& options) {
    check_options(state_layout(options).optimizer.c_str(), options);
  }
  static std::vector<NamedTensors> parameters_of(const std::vector<ParamGroup<O>>& groups) {
    std::vector<NamedTensors> parameters;
    for (const ParamGroup<O>& group : groups) {
      check(group.options);
      parameters.push_back(group.parameters);
    }
    return parameters;
  }
  static O read(const Tree& saved, O options) {
    options_from_tree(saved, options);
    check(options);
    return options;
  }

  StateNeeds needs(size_t group) const override { return state_needs(options_[group]); }
  StateNeeds needs(const Tree& saved) const override { return state_needs(read(saved, O())); }
  Tree::Dict options_tree(size_t group) const override { return options_to_tree(options_[group]); }
  void load_options(const std::vector<const Tree*>& saved) override {
    std::vector<O> loaded = options_;
    for (size_t group = 0; group < saved.size(); ++group) {
      if (saved[group] != nullptr) loaded[group] = read(*saved[group], loaded[group]);
    }
    options_ = std::move(loaded);
  }

  std::vector<O> options_;
};

}  // namespace bellows::optim
