// Activation recomputation ("gradient checkpointing"): what a function saves for the backward pass
// is dropped and computed again when backward asks for it. The role of torch.utils.checkpoint with
// use_reentrant=False, whose rules it follows.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "bellows/core/error.h"
#include "bellows/tree/tree.h"

namespace bellows::memory {

struct CheckpointOptions {
  /// The recomputation draws the same random numbers: generators of the CPU and of the arguments'
  /// devices (and of `devices`). Costs 5 KiB a call, and as much for each device.
  bool preserve_rng_state = true;
  /// The recomputation ends with the last tensor that is needed.
  bool early_stop = true;
  /// Compares shape, type and device of each recomputed tensor with those of the first time.
  bool determinism_check = true;
  /// Tensors that the function changes by itself and whose change must not come twice, as the
  /// running statistics of batch norm: they are put back after the recomputation. What it computes
  /// must not depend on them.
  std::vector<at::Tensor> buffers = {};
  /// Further devices whose generators the function draws from.
  std::vector<c10::Device> devices = {};
  /// Results of these operators ("aten::linear" or "linear") are kept and not computed again; what
  /// autograd saves of their arguments is recomputed. Names of operators as the program calls them,
  /// which do not change their arguments and give tensors.
  std::vector<std::string> save_operators = {};
  /// Told of each tensor that autograd would have saved (detached; must not be kept), the first
  /// time. `parameter` as of SavedTensor::pack.
  std::function<void(const at::Tensor& tensor, bool parameter)> observe = {};
};

/// The recomputation was not the same as the first computation.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

namespace detail {

class Frame;

/// Around one call: what autograd saves between constructor and end() is recomputed later by
/// `recompute`, which gets the tensors again. Does nothing where gradients are switched off.
class Region {
 public:
  using Recompute = std::function<void(const Tree& tensors)>;
  Region(const Tree& tensors, Recompute recompute, const CheckpointOptions& options);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  void end();

 private:
  struct Guards;
  std::shared_ptr<Frame> frame_;
  std::unique_ptr<Guards> guards_;
};

// The tensors of an argument, and the argument with other tensors.
template <class T>
Tree tensors_of(const T&) {
  return {};
}
inline Tree tensors_of(const at::Tensor& value) {
  return value;
}
inline Tree tensors_of(const Tree& value) {
  return value;
}
inline Tree tensors_of(const std::optional<at::Tensor>& value) {
  return value ? Tree(*value) : Tree();
}
inline Tree tensors_of(const std::vector<at::Tensor>& values) {
  return Tree::List(values.begin(), values.end());
}

template <class T>
void set_tensors(T&, const Tree&) {}
inline void set_tensors(at::Tensor& value, const Tree& tensors) {
  value = tensors.tensor();
}
inline void set_tensors(Tree& value, const Tree& tensors) {
  value = tensors;
}
inline void set_tensors(std::optional<at::Tensor>& value, const Tree& tensors) {
  if (value) value = tensors.tensor();
}
inline void set_tensors(std::vector<at::Tensor>& values, const Tree& tensors) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = tensors[i].tensor();
}

/// Without tensors, so that a copy keeps none alive.
inline Tree blank(const Tree& tensors) {
  return tensors.map([](const at::Tensor&) { return at::Tensor(); });
}

}  // namespace detail

/// fn(args...), whose inner tensors are recomputed in the backward pass. Tensors may come as
/// at::Tensor, optionals and vectors of them, and Trees; arguments of any other type are copied. It
/// gives what fn gives, of any type. fn is copied, and must compute the same when it is called
/// again, from its arguments, parameters, and the random state; it may itself call checkpoint, or
/// run a backward. The gradients, and the random state afterwards, are those of fn(args...), bit
/// for bit. Arguments are kept, and must not be changed in place before the backward has run:
/// LibTorch's error says so. Recomputation runs in the thread of the backward with the autocast
/// and current device of the call; it keeps what it computed until the backward has used it.
/// Backward throws CheckpointError where the recomputation differs. Throws EnvironmentError as
/// SavedTensorGuard.
template <class Fn, class... Args>
auto checkpoint_with(const CheckpointOptions& options, Fn fn, const Args&... args) {
  Tree::List tensors{detail::tensors_of(args)...};
  std::tuple<std::decay_t<Args>...> copies(args...);
  const auto give = [](std::tuple<std::decay_t<Args>...>& to, const Tree::List& from) {
    std::apply([&, i = size_t{0}](
                   auto&... parts) mutable { (detail::set_tensors(parts, from[i++]), ...); },
               to);
  };
  give(copies, detail::blank(tensors).list());
  detail::Region region(
      tensors,
      [fn, copies, give](const Tree& again) mutable {
        auto own = copies;
        give(own, again.list());
        std::apply(fn, own);
      },
      options);
  if constexpr (std::is_void_v<decltype(fn(args...))>) {
    fn(args...);
    region.end();
  } else {
    auto output = fn(args...);
    region.end();
    return output;
  }
}

template <class Fn, class... Args>
auto checkpoint(Fn fn, const Args&... args) {
  return checkpoint_with(CheckpointOptions{}, std::move(fn), args...);
}

}  // namespace bellows::memory
