// What optimizers with options per group have in common: checks of the parameters, options, and
// state by name.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bellows/optim/optimizer.h"

namespace bellows::optim {

class StateTable;

/// Parameters and state, saved and loaded by name. When a model has been moved to another device or
/// type, or given another layout, the state follows at the next step.
class NamedStateOptimizer : public Optimizer {
 public:
  ~NamedStateOptimizer() override;
  std::string_view name() const override;
  size_t group_count() const override;
  const NamedTensors& parameters(size_t group) const override;
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 protected:
  /// `fields` names the state tensors; "step" is a float32 count, all others are like the
  /// parameter. Throws ValueError for no parameters, a name used twice, a tensor given twice (tied
  /// parameters are given once), and a parameter that is no leaf, not floating-point, or not dense.
  NamedStateOptimizer(std::string name, std::vector<NamedTensors> groups,
                      std::vector<std::string> fields);

  virtual Tree::Dict options_tree(size_t group) const = 0;
  /// Takes over saved options, one for each group (null: keeps its own). Throws ValueError, before
  /// anything has changed, for options out of range.
  virtual void load_options(const std::vector<const Tree*>& saved) = 0;
  /// How many of the fields (from the first) a state has under these options.
  virtual size_t saved_fields(const Tree& options) const = 0;

  std::unique_ptr<StateTable> table_;
};

/// With options O per group. Beside O stand, found by argument: `check(O)` (throws ValueError),
/// `to_tree(O)`, `from_tree(tree, O&)` and `field_count(O)`; O has `lr`.
template <class O>
class GroupedOptimizer : public NamedStateOptimizer {
 public:
  double lr(size_t group) const override { return options(group).lr; }
  void set_lr(size_t group, double lr) override {
    O changed = options(group);
    changed.lr = lr;
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

 protected:
  GroupedOptimizer(std::string name, const std::vector<ParamGroup<O>>& groups,
                   std::vector<std::string> fields)
      : NamedStateOptimizer(std::move(name), parameters_of(groups), std::move(fields)) {
    for (const ParamGroup<O>& group : groups) options_.push_back(group.options);
  }

 private:
  static std::vector<NamedTensors> parameters_of(const std::vector<ParamGroup<O>>& groups) {
    std::vector<NamedTensors> parameters;
    for (const ParamGroup<O>& group : groups) {
      check(group.options);
      parameters.push_back(group.parameters);
    }
    return parameters;
  }
  static O read(const Tree& saved) {
    O options;
    from_tree(saved, options);
    check(options);
    return options;
  }

  Tree::Dict options_tree(size_t group) const override { return to_tree(options_[group]); }
  size_t saved_fields(const Tree& saved) const override { return field_count(read(saved)); }
  void load_options(const std::vector<const Tree*>& saved) override {
    std::vector<O> loaded = options_;
    for (size_t group = 0; group < saved.size(); ++group) {
      if (saved[group] != nullptr) loaded[group] = read(*saved[group]);
    }
    options_ = std::move(loaded);
  }

  std::vector<O> options_;
};

}  // namespace bellows::optim
