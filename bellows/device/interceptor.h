// Sees every operator that LibTorch runs, of any module, unmodified. The one place that hooks
// LibTorch's dispatcher (the key TESTING_ONLY_GenericMode, above autograd). Costs nothing while no
// guard is alive, 0.2 us an operator and the visitor's own time while one is.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace c10 {
struct IValue;
}

namespace bellows {

/// One call of an operator, before it runs. Valid during the visit.
class OperatorCall {
 public:
  virtual ~OperatorCall() = default;
  /// "aten::linear"
  virtual std::string_view name() const = 0;
  /// "Tensor" of aten::add.Tensor; may be empty.
  virtual std::string_view overload() const = 0;
  /// Calls visit("weight", tensor) for each defined tensor among the arguments; an element of a
  /// list is "tensors[2]".
  virtual void for_each_tensor(
      const std::function<void(const std::string& argument, const at::Tensor& tensor)>& visit)
      const = 0;
  /// Has `fn` called with the operator's results (all defined tensors, also those in lists) once it
  /// has run, or a handler in its place; where it throws, not at all. In reverse order of asking.
  virtual void when_done(std::function<void(const std::vector<at::Tensor>& results)> fn) const = 0;
};

using OperatorVisitor = std::function<void(const OperatorCall&)>;

/// A visitor that can take the operator's place: it gives true where it did, and has then replaced
/// the arguments, the last values of `stack`, by the operator's results. It may use autograd.
using OperatorHandler =
    std::function<bool(const OperatorCall& call, std::vector<c10::IValue>& stack)>;

/// While alive, calls `visitor` before every operator this thread runs at top level (what an
/// operator is made of is not seen: a linear layer is one call), and those of a backward started
/// meanwhile, also where autograd runs it in another thread; `visitor` must then be safe to call
/// from there. Operators that the visitor itself runs are not seen. What it throws leaves through
/// the operator, which has then not run. Guards nest, the outer one is called first (where a
/// handler takes the operator's place, inner ones are not called); they end in reverse order, on
/// the thread that made them.
class InterceptGuard {
 public:
  explicit InterceptGuard(OperatorVisitor visitor);
  explicit InterceptGuard(OperatorHandler handler);
  ~InterceptGuard();
  InterceptGuard(const InterceptGuard&) = delete;
  InterceptGuard& operator=(const InterceptGuard&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows
