#include "bellows/device/sim/fallback.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "bellows/core/text.h"
#include "bellows/device/device.h"
#include "bellows/device/sim/cost.h"
#include "bellows/device/sim/generator.h"
#include "bellows/device/sim/host_view.h"
#include "bellows/device/sim/queue.h"
#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

bool is_simulated(const c10::Device& device) {
  return device.type() == kType;
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Calls visit(tensor, place) for each defined tensor of an argument; place is its index in a list,
// -1 outside of one.
template <class Fn>
void visit_tensors(const c10::IValue& value, Fn visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor(), -1);
  } else if (value.isList()) {
    const auto list = value.toListRef();
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i].isTensor() && list[i].toTensor().defined())
        visit(list[i].toTensor(), static_cast<int>(i));
  }
}

// Element-wise operators that lack LibTorch's tag for them.
bool is_element_wise(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::pointwise)) return true;
  constexpr std::array<std::string_view, 20> kUntagged{
      "rsub",        "eq_",         "ne_",   "lt_",      "le_",        "gt_",
      "ge_",         "gcd",         "gcd_",  "lcm",      "lcm_",       "complex",
      "polar",       "fill",        "fill_", "mse_loss", "huber_loss", "smooth_l1_loss",
      "masked_fill", "masked_fill_"};
  constexpr std::array<std::string_view, 5> kFamilies{"_foreach_", "_fused_", "bernoulli",
                                                      "copysign", "floor_divide"};
  std::string_view name = op.operator_name().name;
  name.remove_prefix(std::min(name.size(), sizeof("aten::") - 1));
  return std::ranges::find(kUntagged, name) != kUntagged.end() ||
         std::ranges::any_of(kFamilies,
                             [&](std::string_view family) { return name.starts_with(family); });
}

// index, index_put and their relatives, which take indices from the CPU.
bool is_indexing(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  return name == "aten::index" || name.starts_with("aten::index_put") ||
         name.starts_with("aten::_index_put") || name.starts_with("aten::_unsafe_index");
}

// CPU tensors that PyTorch takes next to tensors of a device: numbers in element-wise operators,
// and indices.
bool may_be_on_cpu(const c10::OperatorHandle& op, const c10::Argument& argument,
                   const at::Tensor& tensor) {
  if (writes(argument)) return false;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return true;  // a number in C++
  if (is_indexing(op)) return argument.name() == "indices" || tensor.dim() == 0;
  if (tensor.dim() > 0) return argument.name() == "lengths" || argument.name() == "batch_sizes";
  return is_element_wise(op) ||
         (argument.name() == "value" &&
          std::string_view(op.operator_name().name).starts_with("aten::index_fill"));
}

// One operator and its arguments on the stack.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op),
        stack_(stack),
        arguments_(op.schema().arguments()),
        first_(stack.size() - arguments_.size()),
        name_(c10::toString(op.operator_name())) {}

  void run() {
    const c10::Device device = find_device();
    const c10::DeviceGuard guard(device);
    current_queue(device).synchronize();
    torch::jit::Stack host = host_arguments(device);
    const auto inputs = state().costs ? torch::jit::Stack(host) : torch::jit::Stack();
    torch::jit::Stack before = host;  // the views, to be compared afterwards
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &host);
    }
    write_back(before);
    if (state().costs) charge_operator(op_, inputs, host, device);
    give_results(host, device);
  }

 private:
  const c10::IValue& argument(size_t i) const { return stack_[first_ + i]; }

  [[noreturn]] void mixed(const std::string& first, const std::string& second) const {
    TORCH_CHECK(false, name_, ": expected all tensors to be on the same device, but found ", first,
                " and ", second);
  }

  // The device of all tensors; without tensors, of the device argument or the generator, else the
  // current one.
  c10::Device find_device() const {
    std::optional<c10::Device> device;
    std::string holder;
    const auto meet = [&](c10::Device found, const std::string& who) {
      const std::string text = concat(who, " on ", device_name(found));
      if (!device) {
        device = found;
        holder = text;
      } else if (*device != found) {
        mixed(holder, text);
      }
    };
    for (size_t i = 0; i < arguments_.size(); ++i) {
      visit_tensors(argument(i), [&](const at::Tensor& tensor, int place) {
        if (tensor.is_cpu() && may_be_on_cpu(op_, arguments_[i], tensor)) return;
        meet(tensor.device(),
             place < 0 ? arguments_[i].name() : concat(arguments_[i].name(), "[", place, "]"));
      });
    }
    for (size_t i = 0; i < arguments_.size() && !device; ++i) {
      if (argument(i).isDevice() && is_simulated(argument(i).toDevice()))
        device = argument(i).toDevice();
      if (argument(i).isGenerator()) device = argument(i).toGenerator().device();
    }
    if (device && !is_simulated(*device)) mixed(holder, "the operator on a simulated device");
    return device && device->has_index() ? *device : device_at(current_device());
  }

  torch::jit::Stack host_arguments(c10::Device device) {
    torch::jit::Stack host;
    host.reserve(arguments_.size());
    bool draws = false;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const bool generator = is_generator(arguments_[i]);
      draws = draws || generator;
      host.push_back(generator ? host_generator_of(argument(i), device) : host_value(argument(i)));
    }
    if (!draws && op_.hasTag(at::Tag::nondeterministic_seeded)) check_draws_nothing();
    return host;
  }

  static bool is_generator(const c10::Argument& argument) {
    const c10::TypePtr type = argument.type();
    if (type->kind() == c10::TypeKind::GeneratorType) return true;
    return type->kind() == c10::TypeKind::OptionalType &&
           type->expectRef<c10::OptionalType>().getElementType()->kind() ==
               c10::TypeKind::GeneratorType;
  }

  c10::IValue host_generator_of(const c10::IValue& value, c10::Device device) const {
    if (value.isNone()) return host_generator(default_generator(device.index()));
    return host_generator(value.toGenerator());
  }

  // Operators that draw from the CPU's default generator behind the schema's back.
  void check_draws_nothing() const {
    const auto& returns = op_.schema().returns();
    const bool gives_tensors = std::ranges::any_of(returns, [](const c10::Argument& value) {
      return value.type()->kind() != c10::TypeKind::IntType;
    });
    if (!gives_tensors) return;  // it chooses an implementation
    for (size_t i = 0; i < arguments_.size(); ++i)
      if (arguments_[i].name() == "dropout_p" && argument(i).isDouble() &&
          argument(i).toDouble() == 0)
        return;
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, name_,
        " draws random numbers without taking a generator, which simulated devices do not "
        "support; run it on the CPU");
  }

  c10::IValue host_value(const c10::IValue& value) {
    if (value.isTensor()) return host_tensor(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> out;
      for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(host_tensor(tensor));
      return out;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> out;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        out.push_back(tensor ? std::optional<at::Tensor>(host_tensor(*tensor)) : std::nullopt);
      return out;
    }
    if (value.isDevice() && is_simulated(value.toDevice())) return c10::Device(c10::kCPU);
    TORCH_CHECK_NOT_IMPLEMENTED(
        !value.isStorage(), name_,
        " takes a storage, which simulated devices do not support; run it on the CPU");
    return value;
  }

  at::Tensor host_tensor(const at::Tensor& tensor) {
    return tensor.defined() && is_simulated(tensor.device()) ? views_.of(tensor) : tensor;
  }

  void write_back(const torch::jit::Stack& host) const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!writes(arguments_[i])) continue;
      const auto own = tensors_of(argument(i));
      const auto view = tensors_of(host[i]);
      for (size_t k = 0; k < own.size(); ++k) views_.write_back(own[k], view[k]);
    }
  }

  static std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
    std::vector<at::Tensor> out;
    visit_tensors(value, [&](const at::Tensor& tensor, int) { out.push_back(tensor); });
    return out;
  }

  void give_results(const torch::jit::Stack& host, c10::Device device) {
    const auto& returns = op_.schema().returns();
    std::vector<c10::IValue> out;
    for (size_t i = 0; i < returns.size(); ++i) out.push_back(result(returns[i], host[i], device));
    torch::jit::drop(stack_, arguments_.size());
    for (c10::IValue& value : out) stack_.push_back(std::move(value));
  }

  c10::IValue result(const c10::Argument& formal, const c10::IValue& value,
                     c10::Device device) const {
    if (writes(formal)) {
      for (size_t i = 0; i < arguments_.size(); ++i)
        if (writes(arguments_[i]) &&
            arguments_[i].alias_info()->beforeSets() == formal.alias_info()->beforeSets())
          return argument(i);
    }
    if (value.isTensor()) {
      at::Tensor out = views_.to_device(value.toTensor(), device, name_);
      check_view(formal, value.toTensor(), out);
      return out;
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> out;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        out.push_back(views_.to_device(tensor, device, name_));
        check_view(formal, tensor, out.get(out.size() - 1));
      }
      return out;
    }
    return value;
  }

  // What the schema calls a view must be one.
  void check_view(const c10::Argument& formal, const at::Tensor& host,
                  const at::Tensor& out) const {
    if (formal.alias_info() == nullptr || formal.alias_info()->isWrite() || !out.defined() ||
        host.numel() == 0)
      return;
    TORCH_CHECK_NOT_IMPLEMENTED(
        out.storage().data() == host.storage().data(), name_,
        " should give a view of its input, and did not; simulated devices do not support it");
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const std::vector<c10::Argument>& arguments_;
  const size_t first_;
  const std::string name_;
  HostViews views_;
};

}  // namespace

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  Call(op, *stack).run();
}

}  // namespace bellows::sim
