// What becomes of the tensors that autograd saves for the backward pass: the role of
// torch.autograd.graph.saved_tensors_hooks. The one place that takes the place of LibTorch's
// autograd engine, which alone is asked for such hooks: it does so when the library is loaded, as
// the engine makes one thread a device once and cannot be changed afterwards. Where no guard is
// alive a saved tensor costs one look at a thread-local pointer more.
#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

namespace bellows::memory {

/// One tensor that autograd has saved; destroyed when the graph lets go of it. Methods may be
/// called by autograd's threads, not two at once.
class SavedTensor {
 public:
  virtual ~SavedTensor() = default;
  /// Called once, without gradients. `tensor` is detached and shares memory and version with what
  /// is saved: keeping it is what autograd would do. `parameter`: it is a leaf that wants
  /// gradients, or a view of one, so that its memory is there anyway.
  virtual void pack(const at::Tensor& tensor, bool parameter) = 0;
  /// The values that were packed: same sizes, type and device. Called once by each backward pass
  /// that needs them.
  virtual at::Tensor unpack() = 0;
};

/// Makes the place of one saved tensor; null: autograd saves it itself.
using SavedTensorFactory = std::function<std::unique_ptr<SavedTensor>()>;

/// While alive, what this thread saves goes to the factory's objects; also what a backward that is
/// started meanwhile saves (create_graph), in whichever thread. Guards nest: the innermost alone
/// is asked. They end in reverse order, on the thread that made them. LibTorch no longer looks
/// for changes in place where there are hooks; this does, and throws its error at unpack. Throws
/// EnvironmentError where another engine is in force, as in a Python process.
class SavedTensorGuard {
 public:
  explicit SavedTensorGuard(SavedTensorFactory factory);
  ~SavedTensorGuard();
  SavedTensorGuard(const SavedTensorGuard&) = delete;
  SavedTensorGuard& operator=(const SavedTensorGuard&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether a guard is in force in this thread.
bool saved_tensor_hooks_on();

}  // namespace bellows::memory
