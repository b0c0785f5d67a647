// Deep copies of torch::nn modules. This header costs 12 s where it is included, as from_module.h.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <typeinfo>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

namespace bellows::nn {
namespace detail {

using ModulePointer = std::shared_ptr<torch::nn::Module>;

/// Makes a module that is to be checked, and to get the original's values; null: no way to do it.
using Build = std::function<ModulePointer()>;

/// The first of: `rebuild`, the module's own clone(), that has the original's structure.
ModulePointer deep_copy(const torch::nn::Module& original, const Build& rebuild);
ModulePointer deep_copy_into(const torch::nn::Module& original, const Build& factory);
void check_present(bool present);
/// Empties the lists of parameters, buffers and sub-modules.
void forget_registered(torch::nn::Module& module);

/// As Cloneable::clone, but sub-modules are those that reset() makes, so that ties that it makes
/// stay.
template <class M>
ModulePointer rebuild(const M& original) {
  if constexpr (std::is_base_of_v<torch::nn::Cloneable<M>, M> && std::is_copy_constructible_v<M>) {
    if (typeid(original) != typeid(M)) return nullptr;
    auto copy = std::make_shared<M>(original);
    forget_registered(*copy);
    static_cast<torch::nn::Cloneable<M>&>(*copy).reset();
    return copy;
  } else {
    return nullptr;
  }
}

}  // namespace detail

template <class M>
concept TorchModule = std::is_base_of_v<torch::nn::Module, M>;

/// A module of the same type that shares no parameter, buffer or sub-module with the original:
/// values, types, devices, memory formats, requires_grad, modes and ties (one tensor under several
/// names, views of one memory, a layer's member set to another's tensor) are the same; gradients
/// are not copied, as in Python. Nothing is drawn from the random generators.
///
/// For modules that are torch::nn::Cloneable (LibTorch's own layers and containers too) or have a
/// clone() of their own. As for LibTorch's clone(), reset() makes all members that refer to
/// something; plain members of the module are copied with it, but those of modules inside it are
/// what reset() makes them. A copy that would differ (names, types, shapes, ties, options that
/// LibTorch prints), or would keep a handle to something that the original has registered, is
/// refused with a ValueError that asks for a factory, as is a module that is neither: LibTorch has
/// no way to copy the handles among its members.
///
/// Not seen, and so shared: what such a handle, pointer or function among the members refers to,
/// where it is registered nowhere and reset() does not make it anew, such as a plain
/// `at::Tensor mask`. Register it as a buffer, or give a factory.
///
/// No other thread may use the module meanwhile.
template <TorchModule M>
std::shared_ptr<M> deep_copy(const M& module) {
  return std::dynamic_pointer_cast<M>(
      detail::deep_copy(module, [&] { return detail::rebuild(module); }));
}

/// The same for any module: `factory` makes one of the same structure (a pointer or holder), as the
/// original was made; it then gets the original's tensors and modes. Plain members are the
/// factory's. Throws ValueError where the structure differs or something is shared.
template <TorchModule M, class Factory>
std::shared_ptr<M> deep_copy(const M& module, const Factory& factory) {
  return std::dynamic_pointer_cast<M>(
      detail::deep_copy_into(module, [&]() -> detail::ModulePointer {
        if constexpr (requires { factory().ptr(); }) {
          return std::dynamic_pointer_cast<M>(factory().ptr());
        } else {
          return std::dynamic_pointer_cast<M>(std::shared_ptr<M>(factory()));
        }
      }));
}

/// Of pointers; a null pointer is a ValueError.
template <TorchModule M, class... Factory>
std::shared_ptr<M> deep_copy(const std::shared_ptr<M>& module, const Factory&... factory) {
  detail::check_present(module != nullptr);
  return deep_copy(*module, factory...);
}

/// Of holders, such as Linear or what TORCH_MODULE defines: gives a holder of the same type. An
/// empty one is a ValueError.
template <class Holder, class... Factory>
requires std::is_base_of_v<torch::nn::ModuleHolder<typename Holder::ContainedType>, Holder> Holder
deep_copy(const Holder& module, const Factory&... factory) {
  detail::check_present(!module.is_empty());
  return Holder(deep_copy(module.ptr(), factory...));
}

}  // namespace bellows::nn
