#include "bellows/amp/anomaly.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <ATen/SequenceNumber.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::amp {

struct AnomalyState {
  AnomalyState(const NamedTensors& parameters, AnomalyOptions wanted) : options(wanted) {
    for (const auto& [name, tensor] : parameters) names.emplace(tensor.unsafeGetTensorImpl(), name);
  }

  bool bad(const at::Tensor& tensor) const {
    if (!tensor.defined() || tensor.is_meta() ||
        !(at::isFloatingType(tensor.scalar_type()) || tensor.is_complex()))
      return false;
    const at::Tensor values = tensor.is_sparse() ? tensor.coalesce().values() : tensor;
    return options.check_inf ? !at::isfinite(values).all().item<bool>()
                             : at::isnan(values).any().item<bool>();
  }

  const AnomalyOptions options;
  std::map<const c10::TensorImpl*, std::string> names;
  std::atomic<bool> on{true};
};

namespace {

using Node = torch::autograd::Node;
using Mode = std::shared_ptr<const AnomalyState>;

// One call of an operator in the forward pass.
struct Operator {
  std::string name;
  std::string module;  // of its parameters, or of what came before
  bool own_module = false;
  std::vector<std::string> parameters;
  // Of the forward pass: set where a result is NaN or infinite.
  std::string first_bad;

  std::string text() const {
    if (own_module) {
      return concat(name, " of ", module.empty() ? "the model itself" : "module '" + module + "'",
                    " (parameters ", join(parameters), ")");
    }
    return module.empty() ? name : concat(name, " after module '", module, "'");
  }
};

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

// Looks at what a node of the backward has made.
class Watch : public torch::autograd::FunctionPostHook {
 public:
  Watch(Mode mode, std::shared_ptr<const Operator> op, const Node& node)
      : mode_(std::move(mode)), op_(std::move(op)), node_(node) {}

  using Tensors = std::vector<at::Tensor>;
  Tensors operator()(const Tensors& made, const Tensors& reached) override {
    const c10::NoGradGuard no_grad;
    if (mode_->on && any_bad(made)) fail(made, any_bad(reached));
    return made;
  }
  const Operator& op() const { return *op_; }

 private:
  bool any_bad(const Tensors& tensors) const {
    return std::ranges::any_of(tensors, [&](const at::Tensor& one) { return mode_->bad(one); });
  }

  [[noreturn]] void fail(const Tensors& made, bool came_so) const {
    const bool nan = std::ranges::any_of(made, [](const at::Tensor& one) {
      return one.defined() && !one.is_sparse() && at::isnan(one).any().item<bool>();
    });
    const std::string kind = nan ? "NaN" : "infinite";
    throw NonFiniteError(concat(
        came_so ? "a gradient that is NaN or infinite reaches the result of " : "the backward of ",
        op_->text(), " (", node_.name(), ")",
        came_so ? ": the gradient that backward() began with, or a sum of gradients, is so"
                : concat(" made a gradient that is ", kind, " of gradients that are finite"),
        op_->first_bad.empty()
            ? "; the results of the forward pass up to it are finite"
            : concat("; in the forward pass, the first such result is that of ", op_->first_bad)));
  }

  Mode mode_;
  std::shared_ptr<const Operator> op_;
  const Node& node_;  // which owns this
};

const Operator* operator_of(const Node* node) {
  if (node == nullptr) return nullptr;
  for (const auto& hook : node->post_hooks()) {
    if (const auto* watch = dynamic_cast<const Watch*>(hook.get())) return &watch->op();
  }
  return nullptr;
}

// Watches the nodes that the operator has made: those between its results and its arguments.
void watch_nodes(const Mode& mode, const std::shared_ptr<const Operator>& op,
                 const std::vector<at::Tensor>& results, const std::set<const Node*>& arguments,
                 uint64_t first_number) {
  constexpr uint64_t kAccumulator = std::numeric_limits<uint64_t>::max();
  std::vector<Node*> pending;
  for (const at::Tensor& result : results) pending.push_back(result.grad_fn().get());
  while (!pending.empty()) {
    Node* node = pending.back();
    pending.pop_back();
    if (node == nullptr || arguments.contains(node) || node->sequence_nr() < first_number ||
        node->sequence_nr() == kAccumulator || operator_of(node) != nullptr) {
      continue;
    }
    node->add_post_hook(std::make_unique<Watch>(mode, op, *node));
    for (const auto& edge : node->next_edges()) pending.push_back(edge.function.get());
  }
}

// Everything known of the operator before it runs, and what is asked of it after.
void watch(const Mode& mode, const OperatorCall& call) {
  if (!c10::GradMode::is_enabled()) return;  // a backward's own operators, evaluation
  const auto op = std::make_shared<Operator>();
  op->name = call.name();
  std::set<const Node*> arguments;
  std::string before, earlier_bad, bad_arguments;
  call.for_each_tensor([&](const std::string& argument, const at::Tensor& tensor) {
    if (const auto found = mode->names.find(tensor.unsafeGetTensorImpl());
        found != mode->names.end()) {
      op->parameters.push_back(found->second);
    }
    const Node* node = tensor.grad_fn().get();
    if (node != nullptr) arguments.insert(node);
    const Operator* producer = operator_of(node);
    if (producer != nullptr && before.empty()) before = producer->module;
    if (producer != nullptr && earlier_bad.empty()) earlier_bad = producer->first_bad;
    const c10::NoGradGuard no_grad;
    if (mode->bad(tensor)) bad_arguments += (bad_arguments.empty() ? "" : ", ") + argument;
  });
  op->own_module = !op->parameters.empty();
  op->module = op->own_module ? module_of(op->parameters[0]) : before;

  call.when_done([=, first = at::sequence_number::peek()](const std::vector<at::Tensor>& results) {
    {
      const c10::NoGradGuard no_grad;
      const bool bad =
          std::ranges::any_of(results, [&](const at::Tensor& one) { return mode->bad(one); });
      if (bad && !earlier_bad.empty()) op->first_bad = earlier_bad;
      if (bad && earlier_bad.empty()) {
        op->first_bad = bad_arguments.empty()
                            ? op->text()
                            : concat(op->text(), ", whose argument ", bad_arguments, " is so too");
      }
    }
    watch_nodes(mode, op, results, arguments, first);
  });
}

}  // namespace

AnomalyMode::AnomalyMode(const NamedTensors& parameters, AnomalyOptions options)
    : state_(std::make_shared<AnomalyState>(parameters, options)),
      guard_([mode = Mode(state_)](const OperatorCall& call) { watch(mode, call); }) {}

AnomalyMode::~AnomalyMode() {
  state_->on = false;
}

}  // namespace bellows::amp
