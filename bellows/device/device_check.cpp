#include "bellows/device/device_check.h"

#include <algorithm>
#include <array>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/device.h"
#include "bellows/device/move.h"

namespace bellows {
namespace {

// Operators whose purpose is to bring devices together.
bool may_mix(std::string_view name) {
  constexpr std::array<std::string_view, 6> kAllowed{"aten::copy_",
                                                     "aten::_copy_from",
                                                     "aten::set_",
                                                     "aten::set_data",
                                                     "aten::_has_compatible_shallow_copy_type",
                                                     "aten::_foreach_copy_"};
  return std::ranges::find(kAllowed, name) != kAllowed.end();
}

// Arguments that LibTorch wants, or allows, on the CPU next to tensors of a device.
bool may_be_on_cpu(std::string_view argument) {
  return argument.starts_with("indices") || argument == "lengths" || argument == "batch_sizes" ||
         argument == "tensor_indices_or_sections";
}

}  // namespace

DeviceCheckGuard::DeviceCheckGuard(c10::Device expected, const NamedTensors& parameters,
                                   const NamedTensors& buffers, const Tree& input)
    : expected_(expected), guard_([this](const OperatorCall& call) { check(call); }) {
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    names_.emplace(tensor.unsafeGetTensorImpl(), name);
    if (tensor.has_storage()) names_.emplace(tensor.storage().unsafeGetStorageImpl(), name);
  };
  for (const auto& [name, tensor] : parameters) add("parameter " + name, tensor);
  for (const auto& [name, tensor] : buffers) add("buffer " + name, tensor);
  input.for_each_tensor(
      [&](const std::string& path, const at::Tensor& tensor) { add(input_name(path), tensor); });
}

std::string DeviceCheckGuard::describe(const std::string& argument,
                                       const at::Tensor& tensor) const {
  const std::string start = concat(argument, " on ", device_name(tensor.device()));
  auto found = names_.find(tensor.unsafeGetTensorImpl());
  if (found == names_.end() && tensor.has_storage())
    found = names_.find(tensor.storage().unsafeGetStorageImpl());
  if (found != names_.end()) return concat(start, " (", found->second, ")");
  if (same_device(tensor.device(), expected_)) return start;
  return start +
         " (neither parameter, buffer nor input: register it with the module, or make it on the "
         "right device)";
}

void DeviceCheckGuard::check(const OperatorCall& call) const {
  if (may_mix(call.name())) return;
  bool mixed = false;
  std::optional<c10::Device> first;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  call.for_each_tensor([&](const std::string& argument, const at::Tensor& tensor) {
    const bool passes = tensor.device().is_cpu() && (tensor.dim() == 0 || may_be_on_cpu(argument));
    if (passes) return;
    tensors.emplace_back(argument, tensor);
    if (!first) first = tensor.device();
    mixed = mixed || !same_device(*first, tensor.device());
  });
  if (!mixed) return;
  std::vector<std::string> parts;
  for (const auto& [argument, tensor] : tensors) parts.push_back(describe(argument, tensor));
  throw ValueError(concat(call.name(), ": tensors of two devices meet, expected all on ",
                          device_name(expected_), ": ", join(parts)));
}

}  // namespace bellows
