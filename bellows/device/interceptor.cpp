#include "bellows/device/interceptor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/library.h>

#include "bellows/core/text.h"

namespace bellows {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
// A slot that LibTorch carries, with the key, into the threads of a backward; nothing else uses it.
const auto kSlot = c10::DebugInfoKind::TEST_INFO_2;

// The handlers in force, outermost first.
struct Visitors : c10::DebugInfoBase {
  const Visitors* outer = nullptr;  // kept alive by the slot's own chain
  OperatorHandler handler;

  // Whether one of them took the operator's place.
  bool visit(const OperatorCall& call, torch::jit::Stack& stack) const {
    return (outer && outer->visit(call, stack)) || handler(call, stack);
  }
};

const Visitors* visitors_in_force() {
  return static_cast<const Visitors*>(c10::ThreadLocalDebugInfo::get(kSlot));
}

class Call : public OperatorCall {
 public:
  Call(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
      : schema_(op.schema()), stack_(stack) {}

  std::string_view name() const override { return schema_.name(); }
  std::string_view overload() const override { return schema_.overload_name(); }

  void for_each_tensor(
      const std::function<void(const std::string&, const at::Tensor&)>& visit) const override {
    const auto& arguments = schema_.arguments();
    const size_t first = stack_.size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i)
      visit_value(arguments[i].name(), stack_[first + i], visit);
  }

  void when_done(std::function<void(const std::vector<at::Tensor>&)> fn) const override {
    after_.push_back(std::move(fn));
  }

  /// The stack holds the results now.
  void done() const {
    if (after_.empty()) return;
    std::vector<at::Tensor> results;
    const size_t first = stack_.size() - schema_.returns().size();
    for (size_t i = first; i < stack_.size(); ++i)
      visit_value("", stack_[i],
                  [&](const std::string&, const at::Tensor& one) { results.push_back(one); });
    for (auto fn = after_.rbegin(); fn != after_.rend(); ++fn) (*fn)(results);
  }

 private:
  static void visit_value(const std::string& name, const c10::IValue& value,
                          const std::function<void(const std::string&, const at::Tensor&)>& visit) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit(name, value.toTensor());
    } else if (value.isList()) {
      const auto list = value.toListRef();
      for (size_t i = 0; i < list.size(); ++i)
        visit_value(concat(name, "[", i, "]"), list[i], visit);
    }
  }

  const c10::FunctionSchema& schema_;
  const torch::jit::Stack& stack_;
  mutable std::vector<std::function<void(const std::vector<at::Tensor>&)>> after_;
};

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard off(kKey);
  const auto* visitors = visitors_in_force();
  const Call call(op, *stack);
  if (!visitors || !visitors->visit(call, *stack)) op.callBoxed(stack);
  call.done();
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
}

struct InterceptGuard::State {
  explicit State(std::shared_ptr<Visitors> visitors) : slot(kSlot, std::move(visitors)), on(kKey) {}
  c10::DebugInfoGuard slot;
  c10::impl::IncludeDispatchKeyGuard on;
};

InterceptGuard::InterceptGuard(OperatorVisitor visitor)
    : InterceptGuard(OperatorHandler(
          [visitor = std::move(visitor)](const OperatorCall& call, torch::jit::Stack&) {
            visitor(call);
            return false;
          })) {}

InterceptGuard::InterceptGuard(OperatorHandler handler) {
  auto visitors = std::make_shared<Visitors>();
  visitors->handler = std::move(handler);
  visitors->outer = visitors_in_force();
  state_ = std::make_unique<State>(std::move(visitors));
}

InterceptGuard::~InterceptGuard() = default;

}  // namespace bellows
