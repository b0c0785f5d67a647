#include "bellows/amp/autocast.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/autocast_mode.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/device.h"
#include "bellows/device/sim.h"

namespace bellows::amp {
namespace {

// How many guards of all threads use LibTorch's cache, by kind of device and type. Two types at a
// time would get each other's casts.
class CacheUsers {
 public:
  bool enter(c10::DeviceType type, at::ScalarType dtype) {
    const std::lock_guard lock(mutex_);
    const bool another = std::ranges::any_of(users_, [&](const auto& entry) {
      return entry.second > 0 && entry.first.first == type && entry.first.second != dtype;
    });
    if (!another) ++users_[{type, dtype}];
    return !another;
  }
  void leave(c10::DeviceType type, at::ScalarType dtype) {
    const std::lock_guard lock(mutex_);
    --users_[{type, dtype}];
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceType, at::ScalarType>, int64_t> users_;
};

CacheUsers& cache_users() {
  static CacheUsers users;
  return users;
}

c10::DeviceType checked(c10::Device device) {
  if (!at::autocast::is_autocast_available(device.type())) {
    throw ValueError(concat("Autocast: there is none for ", device_name(device),
                            "; expected the CPU, CUDA or a simulated device"));
  }
  if (device.is_hpu() && !sim::enabled()) {
    throw EnvironmentError(
        "Autocast: simulated devices are not switched on; call sim::enable(), or set "
        "BELLOWS_SIM_DEVICES");
  }
  return device.type();
}

at::ScalarType checked_dtype(c10::DeviceType type, const AutocastOptions& options) {
  const at::ScalarType dtype = options.dtype.value_or(at::autocast::get_autocast_dtype(type));
  if (options.enabled && dtype != at::kHalf && dtype != at::kBFloat16) {
    throw ValueError(concat("Autocast: dtype: got ", at::toString(dtype),
                            ", expected Half or BFloat16 (enabled = false keeps float32)"));
  }
  return dtype;
}

}  // namespace

Autocast::Autocast(c10::Device device, AutocastOptions options)
    : type_(checked(device)),
      dtype_(checked_dtype(type_, options)),
      was_enabled_(at::autocast::is_autocast_enabled(type_)),
      was_cached_(at::autocast::is_autocast_cache_enabled()),
      was_dtype_(at::autocast::get_autocast_dtype(type_)) {
  shares_cache_ = options.enabled && options.cache_enabled.value_or(was_cached_) &&
                  cache_users().enter(type_, dtype_);
  at::autocast::set_autocast_enabled(type_, options.enabled);
  at::autocast::set_autocast_dtype(type_, dtype_);
  if (at::autocast::increment_nesting() == 1) at::autocast::clear_cache();
  // This setting is for all kinds of devices: a guard that is not enabled must not switch it on.
  at::autocast::set_autocast_cache_enabled(
      options.enabled ? shares_cache_ : was_cached_ && options.cache_enabled.value_or(true));
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, was_enabled_);
  at::autocast::set_autocast_dtype(type_, was_dtype_);
  at::autocast::set_autocast_cache_enabled(was_cached_);
  if (shares_cache_) cache_users().leave(type_, dtype_);
}

bool is_autocast_enabled(c10::Device device) {
  return at::autocast::is_autocast_enabled(device.type());
}

at::ScalarType autocast_dtype(c10::Device device) {
  return at::autocast::get_autocast_dtype(device.type());
}

void clear_autocast_cache() {
  at::autocast::clear_cache();
}

}  // namespace bellows::amp
