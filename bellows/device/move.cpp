#include "bellows/device/move.h"

#include <map>

#include <ATen/core/Tensor.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/device.h"

namespace bellows {
namespace {

constexpr size_t kShown = 10;  // names of one device in a message

}  // namespace

Tree to(const Tree& value, c10::Device device, bool non_blocking) {
  return value.map([&](const at::Tensor& tensor) {
    if (!tensor.defined() || same_device(tensor.device(), device)) return tensor;
    return tensor.to(tensor.options().device(device), non_blocking);
  });
}

void check_devices(c10::Device device, const NamedTensors& parameters, const NamedTensors& buffers,
                   const Tree& input) {
  std::map<std::string, std::vector<std::string>> elsewhere;  // by the device they are on
  const auto check = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && !same_device(tensor.device(), device))
      elsewhere[device_name(tensor.device())].push_back(name);
  };
  for (const auto& [name, tensor] : parameters) {
    check("parameter " + name, tensor);
    if (tensor.defined()) check("gradient of " + name, tensor.grad());
  }
  for (const auto& [name, tensor] : buffers) check("buffer " + name, tensor);
  input.for_each_tensor(
      [&](const std::string& path, const at::Tensor& tensor) { check(input_name(path), tensor); });
  if (elsewhere.empty()) return;

  std::string message = concat("expected all on ", device_name(device));
  for (auto& [where, names] : elsewhere) {
    const size_t more = names.size() > kShown ? names.size() - kShown : 0;
    names.resize(names.size() - more);
    message +=
        concat("; on ", where, ": ", join(names), more > 0 ? concat(" and ", more, " more") : "");
  }
  throw ValueError(message +
                   "; move them with bellows::to(module, device) and bellows::to(input, device)");
}

bool same_device(c10::Device a, c10::Device b) {
  return a.type() == b.type() &&
         (a.is_cpu() || !a.has_index() || !b.has_index() || a.index() == b.index());
}

std::string input_name(const std::string& path) {
  return path.empty() ? "input" : "input " + path;
}

}  // namespace bellows
