// Training of parameters that are kept in bfloat16 (or float16): the optimizer works on float32
// copies, so that updates smaller than the parameters' precision are not lost. Source: "Mixed
// Precision Training" (Micikevicius and others, 2018).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/optim/optimizer.h"

namespace bellows::amp {

/// Any optimizer of Bellows over float32 copies ("masters") of a model's parameters. step() copies
/// the gradients to float32, steps the optimizer, and rounds the masters into the parameters.
/// Parameters that are float32 already are the optimizer's own. It follows a model to another
/// device, and a parameter whose value was changed by others, weights loaded for example, gives it
/// to its master at the next step. Memory: 4 bytes a value, and 4 more during step().
class MasterWeights : public optim::Optimizer {
 public:
  using Make = std::function<std::unique_ptr<optim::Optimizer>(NamedTensors masters)>;
  /// `make` makes the optimizer, of the masters it is given, under the same names; in groups where
  /// it wants. Throws ValueError for an undefined, named twice, or not floating-point parameter,
  /// and for an optimizer of other parameters.
  MasterWeights(const NamedTensors& parameters, const Make& make);

  std::string_view name() const override { return "MasterWeights"; }
  using Optimizer::step;
  void step() override;
  size_t group_count() const override { return optimizer_->group_count(); }
  /// The model's parameters, not the masters.
  const NamedTensors& parameters(size_t group) const override;
  double lr(size_t group) const override { return optimizer_->lr(group); }
  void set_lr(size_t group, double lr) override { optimizer_->set_lr(group, lr); }
  std::optional<double> momentum(size_t group) const override {
    return optimizer_->momentum(group);
  }
  void set_momentum(size_t group, double momentum) override {
    optimizer_->set_momentum(group, momentum);
  }
  /// The one that works on the masters.
  optim::Optimizer& optimizer() { return *optimizer_; }

  // From Stateful: {"name", "optimizer": its state, "masters": {name: float32 tensor}}. Loading
  // also sets the parameters.
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  struct Entry {
    std::string name;
    at::Tensor parameter, master;
    int64_t version = 0;  // of the parameter, when it was last equal to the master
  };

  static void follow(Entry& entry);
  static void copy_back(const std::vector<Entry*>& entries);

  std::vector<Entry> entries_;  // of parameters that are not float32
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<NamedTensors> groups_;
};

}  // namespace bellows::amp
