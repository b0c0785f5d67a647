#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <type_traits>

#include <c10/core/GradMode.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/optim/adapt_members.h"
#include "bellows/optim/optimizer.h"
#include "bellows/optim/saved_state.h"
#include "bellows/optim/state_table.h"

namespace bellows::optim {
namespace {

using LibTorchState = torch::optim::OptimizerParamState;

template <class T>
constexpr bool kIsTensors =
    std::is_same_v<T, std::vector<at::Tensor>> || std::is_same_v<T, std::deque<at::Tensor>>;

// One member to a tree; an undefined tensor or an absent value becomes nothing.
template <class T>
Tree tree_of(const T& value) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return value.defined() ? Tree(value) : Tree();
  } else if constexpr (requires { value.has_value(); }) {
    return value.has_value() ? tree_of(*value) : Tree();
  } else if constexpr (kIsTensors<T>) {
    Tree::List list;
    for (const at::Tensor& one : value) list.push_back(tree_of(one));
    return list;
  } else {
    return value;
  }
}

// One member from a tree; tensors are copied to the parameter's device and type.
struct Reader {
  at::Tensor parameter = {};
  bool whole_state = false;  // LBFGS: tensors are not shaped like the parameter

  void read(const Tree& saved, bool& value) const { value = saved.boolean(); }
  void read(const Tree& saved, int64_t& value) const { value = saved.integer(); }
  void read(const Tree& saved, double& value) const { value = saved.number(); }
  void read(const Tree& saved, std::string& value) const { value = saved.string(); }
  template <class T>
  void read(const Tree& saved, T& value) const {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      value = saved.empty() ? at::Tensor() : own_copy(saved.tensor());
    } else if constexpr (kIsTensors<T>) {
      value.clear();
      for (const Tree& one : saved.list()) read(one, value.emplace_back());
    } else {
      value.reset();
      if (!saved.empty()) read(saved, value.emplace());
    }
  }

 private:
  at::Tensor own_copy(const at::Tensor& saved) const {
    if (!whole_state && saved.sizes() != parameter.sizes()) {
      throw ValueError(concat("got shape ", saved.sizes(), ", expected ", parameter.sizes()));
    }
    return saved.detach().to(parameter.device(), parameter.scalar_type()).clone();
  }
};

template <class T>
Tree::Dict members_to_tree(T& from) {
  Tree::Dict tree;
  members(from, [&](const char* key, auto& value) { tree[key] = tree_of(value); });
  return tree;
}

template <class T>
void members_from_tree(const Tree& saved, T& to, const Reader& reader, const std::string& what) {
  members(to, [&](const char* key, auto& value) {
    try {
      reader.read(saved.at(key), value);
    } catch (const ValueError& error) {
      throw ValueError(what + "." + key + ": " + error.what());
    }
  });
}

// What differs between LibTorch's optimizers, without their types.
struct Kind {
  std::string name;
  Tree::Dict (*options)(torch::optim::OptimizerOptions&);
  Tree::Dict (*state)(LibTorchState&);
  double* (*momentum)(torch::optim::OptimizerOptions&);  // null: it has none
  std::unique_ptr<torch::optim::OptimizerOptions> (*read_options)(const Tree&, const std::string&);
  std::unique_ptr<LibTorchState> (*read_state)(const Tree&, const Reader&, const std::string&);
};

template <class O, class S>
Kind kind(const char* name) {
  return {
      .name = std::string("torch::optim::") + name,
      .options =
          [](torch::optim::OptimizerOptions& o) { return members_to_tree(static_cast<O&>(o)); },
      .state = [](LibTorchState& s) { return members_to_tree(static_cast<S&>(s)); },
      .momentum = [](torch::optim::OptimizerOptions& o) -> double* {
        double* found = nullptr;
        members(static_cast<O&>(o), [&](const std::string& key, auto& value) {
          if constexpr (std::is_same_v<decltype(value), double&>) {
            if (key == "momentum" || key == "beta1") found = &value;
          }
        });
        return found;
      },
      .read_options = [](const Tree& saved, const std::string& what)
          -> std::unique_ptr<torch::optim::OptimizerOptions> {
        std::unique_ptr<O> options;
        if constexpr (std::is_default_constructible_v<O>) {
          options = std::make_unique<O>();
        } else {
          options = std::make_unique<O>(0.0);  // SGD's has no default learning rate
        }
        members_from_tree(saved, *options, Reader{}, what);
        return options;
      },
      .read_state = [](const Tree& saved, const Reader& reader,
                       const std::string& what) -> std::unique_ptr<LibTorchState> {
        auto state = std::make_unique<S>();
        members_from_tree(saved, *state, reader, what);
        return state;
      },
  };
}

std::optional<Kind> kind_of(torch::optim::Optimizer& optimizer) {
  namespace lib = torch::optim;
  const auto is = [&]<class T>(std::type_identity<T>) {
    return dynamic_cast<T*>(&optimizer) != nullptr;
  };
  if (is(std::type_identity<lib::SGD>())) return kind<lib::SGDOptions, lib::SGDParamState>("SGD");
  if (is(std::type_identity<lib::Adam>())) {
    return kind<lib::AdamOptions, lib::AdamParamState>("Adam");
  }
  if (is(std::type_identity<lib::AdamW>())) {
    return kind<lib::AdamWOptions, lib::AdamWParamState>("AdamW");
  }
  if (is(std::type_identity<lib::RMSprop>())) {
    return kind<lib::RMSpropOptions, lib::RMSpropParamState>("RMSprop");
  }
  if (is(std::type_identity<lib::Adagrad>())) {
    return kind<lib::AdagradOptions, lib::AdagradParamState>("Adagrad");
  }
  if (is(std::type_identity<lib::LBFGS>())) {
    return kind<lib::LBFGSOptions, lib::LBFGSParamState>("LBFGS");
  }
  return std::nullopt;
}

class Adapted : public Optimizer {
 public:
  Adapted(torch::optim::Optimizer& optimizer, const NamedTensors& names)
      : optimizer_(optimizer),
        kind_(kind_of(optimizer)),
        is_lbfgs_(dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
    std::map<const c10::TensorImpl*, std::string> name_of;
    for (const auto& [name, tensor] : names) name_of.emplace(tensor.unsafeGetTensorImpl(), name);
    std::set<std::string> seen;
    for (const auto& group : optimizer.param_groups()) {
      NamedTensors& parameters = groups_.emplace_back();
      for (const at::Tensor& parameter : group.params()) {
        const auto found = name_of.find(parameter.unsafeGetTensorImpl());
        if (found == name_of.end()) {
          throw ValueError(concat("adapt: parameter ", parameters.size(), " of group ",
                                  groups_.size() - 1, " (shape ", parameter.sizes(),
                                  ") has no name; pass all the model's named_parameters()"));
        }
        if (!seen.insert(found->second).second) {
          throw ValueError("adapt: parameter '" + found->second + "' is in the optimizer twice");
        }
        parameters.emplace_back(found->second, parameter);
      }
    }
  }

  std::string_view name() const override { return kind_ ? kind_->name : kUnknown; }

  void step() override {
    check_groups();
    if (is_lbfgs_) {
      throw ValueError(
          "torch::optim::LBFGS computes the loss several times a step; call step(closure)");
    }
    optimizer_.step();
    drop_autocast_casts();
  }
  at::Tensor step(const LossClosure& closure) override {
    check_groups();
    at::Tensor loss = optimizer_.step(closure);
    drop_autocast_casts();
    return loss;
  }

  size_t group_count() const override { return groups_.size(); }
  const NamedTensors& parameters(size_t group) const override {
    check_group(group);
    return groups_[group];
  }
  double lr(size_t group) const override {
    check_group(group);
    return optimizer_.param_groups()[group].options().get_lr();
  }
  void set_lr(size_t group, double lr) override {
    check_group(group);
    check_range(std::string(name()), "lr", lr, 0, std::numeric_limits<double>::infinity());
    optimizer_.param_groups()[group].options().set_lr(lr);
  }
  std::optional<double> momentum(size_t group) const override {
    check_group(group);
    double* const value = momentum_of(group);
    return value == nullptr ? std::nullopt : std::optional(*value);
  }
  void set_momentum(size_t group, double momentum) override {
    check_group(group);
    double* const value = momentum_of(group);
    if (value == nullptr) return Optimizer::set_momentum(group, momentum);
    check_range(std::string(name()), "momentum", momentum, 0,
                std::numeric_limits<double>::infinity());
    *value = momentum;
  }

  Tree state_dict() const override {
    const Kind& own = known();
    Tree::List groups;
    Tree::Dict states;
    for (size_t group = 0; group < groups_.size(); ++group) {
      Tree::Dict entry = own.options(optimizer_.param_groups()[group].options());
      write_initial_lr(group, entry);
      Tree::List names;
      for (const auto& [name, parameter] : groups_[group]) {
        names.emplace_back(name);
        const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
        if (found != optimizer_.state().end()) states[name] = own.state(*found->second);
      }
      entry["params"] = std::move(names);
      groups.emplace_back(std::move(entry));
    }
    return Tree::Dict{{"name", own.name}, {"groups", groups}, {"state", states}};
  }

  void load_state_dict(const Tree& state) override;

 private:
  static constexpr std::string_view kUnknown = "an optimizer that Bellows does not know";

  double* momentum_of(size_t group) const {
    return kind_ ? kind_->momentum(optimizer_.param_groups()[group].options()) : nullptr;
  }
  void check_groups() const {
    if (optimizer_.param_groups().size() == groups_.size()) return;
    throw ValueError(concat(name(), ": it has ", optimizer_.param_groups().size(),
                            " parameter groups now, ", groups_.size(),
                            " when it was adapted; adapt it after the last add_param_group"));
  }
  void check_group(size_t group) const {
    if (group < groups_.size()) return;
    throw ValueError(concat(name(), ": got group ", group, ", expected one of ", groups_.size(),
                            " groups (the first is 0)"));
  }
  const Kind& known() const {
    check_groups();
    if (kind_) return *kind_;
    throw ValueError(
        "the state of this torch::optim::Optimizer can be neither saved nor loaded; known are "
        "SGD, "
        "Adam, AdamW, RMSprop, Adagrad and LBFGS");
  }

  torch::optim::Optimizer& optimizer_;
  std::optional<Kind> kind_;
  bool is_lbfgs_;
  std::vector<NamedTensors> groups_;
};

void Adapted::load_state_dict(const Tree& state) {
  const c10::NoGradGuard no_grad;
  const Kind& own = known();
  std::map<std::string, std::unique_ptr<LibTorchState>> loaded;
  const SavedState saved =
      match_saved(*this, state,
                  [&](const std::string& name, const at::Tensor& parameter, const Tree& values,
                      const Tree&, std::vector<std::string>& wrong) {
                    try {
                      loaded[name] = own.read_state(values, {parameter, is_lbfgs_}, name);
                    } catch (const ValueError& error) {
                      wrong.emplace_back(error.what());
                    }
                  });
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  for (const Tree* group : saved.options) {
    options.push_back(group == nullptr ? nullptr : own.read_options(*group, own.name));
  }

  for (size_t group = 0; group < groups_.size(); ++group) {
    if (options[group] != nullptr) {
      read_initial_lr(group, *saved.options[group]);
      optimizer_.param_groups()[group].set_options(std::move(options[group]));
    }
    for (const auto& [name, parameter] : groups_[group]) {
      optimizer_.state().erase(parameter.unsafeGetTensorImpl());
      const auto found = loaded.find(name);
      if (found == loaded.end()) continue;
      optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(found->second);
    }
  }
}

}  // namespace

std::unique_ptr<Optimizer> adapt(torch::optim::Optimizer& optimizer, const NamedTensors& names) {
  return std::make_unique<Adapted>(optimizer, names);
}

}  // namespace bellows::optim
