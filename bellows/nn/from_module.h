// A Model from any torch::nn module. This header costs 12 s where it is included: keep it in the
// source file that defines the module.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "bellows/nn/deep_copy.h"
#include "bellows/nn/model.h"

namespace bellows::nn {
namespace detail {

/// All of the adapter but its forward.
class ModuleModel : public Model::Interface {
 public:
  /// Throws ValueError for an empty holder.
  explicit ModuleModel(std::shared_ptr<torch::nn::Module> module);
  NamedTensors named_parameters() const override;
  NamedTensors named_buffers() const override;
  Ties ties() const override;
  void train(bool on) override;
  bool is_training() const override;
  void to(c10::Device device) override;

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

/// The tensor at `index`, or ValueError that names the argument.
const at::Tensor& argument(std::span<const Tree> arguments, size_t index);
[[noreturn]] void refuse_count(const torch::nn::Module& module, size_t got,
                               const std::vector<size_t>& accepted);

inline Tree to_tree(at::Tensor value) {
  return value;
}
inline Tree to_tree(Tree value) {
  return value;
}
template <class T>
Tree to_tree(std::vector<T> values);
template <class T>
Tree to_tree(std::map<std::string, T> values);
template <class First, class Second>
Tree to_tree(std::pair<First, Second> values);
template <class... Parts>
Tree to_tree(std::tuple<Parts...> values) {
  return std::apply([](auto&... parts) { return Tree::List{to_tree(std::move(parts))...}; },
                    values);
}
template <class First, class Second>
Tree to_tree(std::pair<First, Second> values) {
  return Tree::List{to_tree(std::move(values.first)), to_tree(std::move(values.second))};
}
template <class T>
Tree to_tree(std::vector<T> values) {
  Tree::List out;
  for (T& value : values) out.push_back(to_tree(std::move(value)));
  return out;
}
template <class T>
Tree to_tree(std::map<std::string, T> values) {
  Tree::Dict out;
  for (auto& [key, value] : values) out.emplace(key, to_tree(std::move(value)));
  return out;
}

template <class R, class C, class A>
std::is_same<std::remove_cvref_t<A>, Tree> sole_argument_is_tree(R (C::*)(A));
template <class R, class C, class A>
std::is_same<std::remove_cvref_t<A>, Tree> sole_argument_is_tree(R (C::*)(A) const);
template <class M>
concept TakesTree = requires {
  requires decltype(sole_argument_is_tree(&M::forward))::value;
};

template <class M, size_t... I>
constexpr bool takes_tensors(std::index_sequence<I...>) {
  return requires(M & module, const at::Tensor& tensor) {
    module.forward(((void)I, tensor)...);
  };
}
template <class M, size_t Count>
inline constexpr bool kTakes = takes_tensors<M>(std::make_index_sequence<Count>());

inline constexpr size_t kMostArguments = 8;

template <class M>
class ModuleModelOf final : public ModuleModel {
 public:
  explicit ModuleModelOf(std::shared_ptr<M> module) : ModuleModel(module), module_(*module) {}

  std::shared_ptr<Interface> deep_copy() const override {
    return std::make_shared<ModuleModelOf<M>>(nn::deep_copy(module_));
  }

  Tree forward(const Tree& input) override {
    if constexpr (TakesTree<M>) {
      return to_tree(module_.forward(input));
    } else {
      const std::span<const Tree> arguments =
          input.is_list() ? std::span<const Tree>(input.list()) : std::span<const Tree>(&input, 1);
      return spread(arguments, std::make_index_sequence<kMostArguments>());
    }
  }

 private:
  template <size_t... Before>
  Tree spread(std::span<const Tree> arguments, std::index_sequence<Before...>) {
    static_assert((kTakes<M, Before + 1> || ...),
                  "from_module needs a module whose forward can be called with 1 to 8 tensors, or "
                  "with a bellows::Tree");
    Tree output;
    const bool called =
        (call_if<Before + 1>(arguments, output, std::make_index_sequence<Before + 1>()) || ...);
    if (!called) {
      std::vector<size_t> accepted;
      ((kTakes<M, Before + 1> ? accepted.push_back(Before + 1) : void()), ...);
      refuse_count(module_, arguments.size(), accepted);
    }
    return output;
  }

  template <size_t Count, size_t... I>
  bool call_if(std::span<const Tree> arguments, Tree& output, std::index_sequence<I...>) {
    if constexpr (kTakes<M, Count>) {
      if (arguments.size() != Count) return false;
      output = to_tree(module_.forward(argument(arguments, I)...));
      return true;
    } else {
      return false;
    }
  }

  M& module_;  // the base owns it
};

/// The names and tensors of a module whose forward takes other than tensors; it cannot be called.
class UncallableModule final : public ModuleModel {
 public:
  using ModuleModel::ModuleModel;
  Tree forward(const Tree& input) override;
};

template <class M, size_t... Before>
constexpr bool takes_some_tensors(std::index_sequence<Before...>) {
  return (kTakes<M, Before + 1> || ...);
}

/// As from_module, for a module with any forward.
template <class M>
Model any_module(std::shared_ptr<M> module) {
  if constexpr (TakesTree<M> || takes_some_tensors<M>(std::make_index_sequence<kMostArguments>()))
    return Model(std::make_shared<ModuleModelOf<M>>(std::move(module)));
  else
    return Model(std::make_shared<UncallableModule>(std::move(module)));
}

}  // namespace detail

/// The module as a model; it is shared, not copied. Its forward takes 1 to 8 tensors (a list input
/// is spread over them; overloads, templates as Sequential's and default arguments work), or one
/// `const Tree&`, which gets the input as it is. It gives a tensor, a tuple, pair, vector or map of
/// what it may give, or a Tree. A wrong number of arguments is a ValueError. `to` calls the
/// module's own `to`, which it may override for what it has not registered.
template <class M>
Model from_module(std::shared_ptr<M> module) {
  static_assert(std::is_base_of_v<torch::nn::Module, M>, "from_module needs a torch::nn::Module");
  return Model(std::make_shared<detail::ModuleModelOf<M>>(std::move(module)));
}

/// As above, from what TORCH_MODULE defines: from_module(Net()).
template <class M>
Model from_module(const torch::nn::ModuleHolder<M>& holder) {
  return from_module(holder.is_empty() ? std::shared_ptr<M>() : holder.ptr());
}

}  // namespace bellows::nn
