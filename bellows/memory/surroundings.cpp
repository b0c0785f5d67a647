#include "bellows/memory/surroundings.h"

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

// Declared here because ATen/autocast_mode.h includes all of ATen.
namespace at::autocast {
TORCH_API bool is_autocast_enabled(at::DeviceType device_type);
TORCH_API void set_autocast_enabled(at::DeviceType device_type, bool enabled);
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
TORCH_API void set_autocast_dtype(at::DeviceType device_type, at::ScalarType dtype);
TORCH_API void clear_cache();
TORCH_API int increment_nesting();
TORCH_API int decrement_nesting();
TORCH_API bool is_autocast_cache_enabled();
TORCH_API void set_autocast_cache_enabled(bool enabled);
}  // namespace at::autocast

namespace bellows::memory {
namespace {

constexpr std::array kKinds{c10::DeviceType::CPU, c10::DeviceType::CUDA, c10::DeviceType::HPU};

}  // namespace

RandomStates::RandomStates(const std::vector<c10::Device>& devices) {
  const auto add = [&](c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  };
  add(c10::Device(c10::kCPU));
  for (const c10::Device device : devices) add(device);
}

void RandomStates::restore() const {
  for (const auto& [generator, state] : states_) {
    at::Generator own = generator;
    const std::lock_guard lock(own.mutex());
    own.set_state(state);
  }
}

AutocastState AutocastState::now() {
  AutocastState out;
  for (size_t i = 0; i < kKinds.size(); ++i)
    out.kinds[i] = {at::autocast::is_autocast_enabled(kKinds[i]),
                    at::autocast::get_autocast_dtype(kKinds[i])};
  out.cache = at::autocast::is_autocast_cache_enabled();
  return out;
}

void AutocastState::set() const {
  for (size_t i = 0; i < kKinds.size(); ++i) {
    at::autocast::set_autocast_enabled(kKinds[i], kinds[i].enabled);
    at::autocast::set_autocast_dtype(kKinds[i], kinds[i].type);
  }
  at::autocast::set_autocast_cache_enabled(cache);
}

std::vector<c10::Device> accelerators_in(const Tree& tensors) {
  std::vector<c10::Device> out;
  tensors.for_each_tensor([&](const std::string&, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) return;
    if (std::ranges::find(out, tensor.device()) == out.end()) out.push_back(tensor.device());
  });
  return out;
}

Surroundings::Surroundings(std::vector<c10::Device> devices, bool random)
    : devices_(std::move(devices)), autocast_(AutocastState::now()) {
  if (random) random_.emplace(devices_);
  if (!devices_.empty())
    current_ = c10::impl::VirtualGuardImpl(devices_.front().type()).getDevice();
}

Surroundings::Restored::Restored(const Surroundings& then) : autocast_(AutocastState::now()) {
  if (then.random_) {
    random_.emplace(then.devices_);
    then.random_->restore();
  }
  if (then.current_) device_.emplace(*then.current_);
  at::autocast::increment_nesting();
  then.autocast_.set();
}

Surroundings::Restored::~Restored() {
  autocast_.set();
  // Casts made meanwhile belong to a graph that nobody needs.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  device_.reset();
  if (random_) random_->restore();
}

}  // namespace bellows::memory
