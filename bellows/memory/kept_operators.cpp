#include "bellows/memory/kept_operators.h"

#include <algorithm>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/memory/checkpoint.h"

namespace bellows::memory::detail {
namespace {

using Stack = std::vector<c10::IValue>;

c10::OperatorHandle find(const OperatorCall& call) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(std::string(call.name()).c_str(),
                                                        std::string(call.overload()).c_str());
}

void check_can_be_kept(const c10::OperatorHandle& op) {
  const auto refuse = [&](const std::string& why) {
    throw ValueError(concat("checkpoint: save_operators: ", op.schema().name(), " ", why,
                            ", so that its result cannot be kept; leave it out of the list"));
  };
  if (op.schema().is_mutable()) refuse("changes its arguments");
  for (const c10::Argument& result : op.schema().returns()) {
    if (result.alias_info() != nullptr) refuse("gives a view");
    if (result.type()->kind() == c10::TypeKind::ListType) refuse("gives a list");
  }
}

bool same_memory(const at::Tensor& tensor, const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& other = value.toTensor();
  return tensor.has_storage() && other.has_storage() &&
         tensor.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         tensor.scalar_type() == other.scalar_type();
}

at::Tensor view_of(const at::Tensor& tensor, const std::vector<int64_t>& sizes,
                   const std::vector<int64_t>& strides, int64_t offset) {
  const c10::AutoGradMode no_grad(false);
  return at::as_strided(tensor.tensor_data(), sizes, strides, tensor.storage_offset() + offset);
}

// A tensor of the same memory that is neither a leaf nor has a usable history: what follows builds
// a graph on it as on the real one.
at::Tensor with_history(const at::Tensor& value) {
  at::Tensor out = value.variable_data();
  torch::autograd::set_history(
      out, c10::make_intrusive<torch::autograd::Error>(
               "a kept result of a checkpointed function has no backward of its own: a backward "
               "within the function cannot pass it; leave out its operator of save_operators"));
  return out;
}

}  // namespace

KeptOperators::KeptOperators(const std::vector<std::string>& names,
                             std::vector<c10::Device> devices)
    : devices_(std::move(devices)) {
  for (const std::string& name : names)
    names_.push_back(name.find("::") == std::string::npos ? "aten::" + name : name);
}

bool KeptOperators::wants(const OperatorCall& call) const {
  return std::ranges::find(names_, call.name()) != names_.end();
}

void KeptOperators::saved(const at::Tensor& tensor) {
  if (watched_ != nullptr) watched_->push_back(tensor);
}

// Before an operator in place, as the `+=` of a bias, changes a kept result.
void KeptOperators::copy_what_changes(const OperatorCall& call) {
  if (!call.name().ends_with('_')) return;
  call.for_each_tensor([&](const std::string&, const at::Tensor& tensor) {
    for (Kept& kept : kept_)
      for (Result& result : kept.results) {
        if (result.copied || !same_memory(tensor, result.value)) continue;
        const c10::AutoGradMode no_grad(false);
        result.value = result.value.toTensor().clone();
        result.version = 0;
        result.copied = true;
      }
  });
}

OperatorHandler KeptOperators::first() {
  return [this](const OperatorCall& call, Stack& stack) {
    if (!wants(call)) {
      copy_what_changes(call);
      return false;
    }
    const c10::OperatorHandle op = find(call);
    check_can_be_kept(op);
    const size_t count = op.schema().arguments().size();
    const Stack arguments(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    std::vector<at::Tensor> watched;
    watched_ = &watched;
    try {
      op.callBoxed(stack);
    } catch (...) {
      watched_ = nullptr;
      throw;
    }
    watched_ = nullptr;
    const size_t given = op.schema().returns().size();
    const Stack results(stack.end() - static_cast<std::ptrdiff_t>(given), stack.end());
    Kept kept{std::string(call.name()), {}, {}, {}};
    for (const at::Tensor& tensor : watched)
      kept.saved.push_back(describe(tensor, arguments, results));
    for (const c10::IValue& value : results) {
      if (value.isTensor() && value.toTensor().defined()) {
        const at::Tensor& tensor = value.toTensor();
        kept.results.push_back({tensor.tensor_data(), tensor.requires_grad(),
                                static_cast<uint32_t>(tensor._version())});
      } else {
        kept.results.push_back({value});
      }
    }
    if (op.hasTag(at::Tag::nondeterministic_seeded)) kept.random.emplace(devices_);
    kept_.push_back(std::move(kept));
    return true;
  };
}

KeptOperators::Saved KeptOperators::describe(const at::Tensor& tensor, const Stack& arguments,
                                             const Stack& results) {
  const auto as_part = [&](From from, const Stack& values) -> std::optional<Saved> {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!same_memory(tensor, values[i])) continue;
      return Saved{from,
                   i,
                   tensor.sizes().vec(),
                   tensor.strides().vec(),
                   tensor.storage_offset() - values[i].toTensor().storage_offset(),
                   {}};
    }
    return std::nullopt;
  };
  if (auto part = as_part(From::result, results)) return *part;
  if (auto part = as_part(From::argument, arguments)) return *part;
  return {From::kept, 0, {}, {}, 0, tensor};
}

at::Tensor KeptOperators::make(const Saved& saved, const Stack& arguments,
                               const std::vector<Result>& results) {
  if (saved.from == From::kept) return saved.kept;
  const c10::IValue& whole =
      saved.from == From::argument ? arguments[saved.index] : results[saved.index].value;
  return view_of(whole.toTensor(), saved.sizes, saved.strides, saved.offset);
}

OperatorHandler KeptOperators::again(std::function<void(const at::Tensor&)> save) {
  return [this, save = std::move(save), next = size_t{0}](const OperatorCall& call,
                                                          Stack& stack) mutable {
    if (!wants(call)) return false;
    if (next >= kept_.size() || kept_[next].name != call.name())
      throw CheckpointError(
          concat("checkpoint: the recomputation calls ", call.name(), " where the first ",
                 next < kept_.size() ? "called " + kept_[next].name : "had called no more",
                 ": the function must call the same operators when it is called again."));
    const Kept& kept = kept_[next++];
    const size_t count = find(call).schema().arguments().size();
    const Stack arguments(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    Stack results;
    for (const Result& result : kept.results) {
      if (!result.value.isTensor() || !result.value.toTensor().defined()) {
        results.push_back(result.value);
        continue;
      }
      const at::Tensor value =
          result.copied ? result.value.toTensor().clone() : result.value.toTensor();
      if (static_cast<uint32_t>(value._version()) != result.version)
        throw CheckpointError(
            concat("checkpoint: a kept result of ", kept.name,
                   " was changed in place afterwards: leave the operator out of save_operators, "
                   "or do not change its result."));
      results.push_back(result.requires_grad ? with_history(value) : value.variable_data());
    }
    for (const Saved& saved : kept.saved) save(make(saved, arguments, kept.results));
    if (kept.random) kept.random->restore();
    stack.erase(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    stack.insert(stack.end(), results.begin(), results.end());
    return true;
  };
}

}  // namespace bellows::memory::detail
