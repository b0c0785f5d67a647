#include "bellows/device/sim.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>

#include <ATen/Context.h>
#include <torch/csrc/autograd/engine.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/cuda_module.h"
#include "bellows/device/device.h"
#include "bellows/device/init.h"
#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

constexpr int64_t kDefaultMemory = int64_t{8} << 30;  // bytes
constexpr int kThreads = 8;  // backward threads made at least, so that devices may be added

// Autograd makes its threads, one a device, at the first backward, and never again.
class Engine : public torch::autograd::Engine {
 public:
  /// The number of devices that backward can reach, made now where that has not happened.
  static size_t settle() {
    auto& engine = torch::autograd::Engine::get_default_engine();
    (engine.*(&Engine::initialize_device_threads_pool))();
    return (engine.*(&Engine::device_ready_queues_)).size();
  }
};

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

int devices_from_environment() {
  const char* text = environment("BELLOWS_SIM_DEVICES");
  if (text == nullptr) return 0;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (*end != '\0' || count < 1 || count > kMaxDevices)
    throw ValueError(
        concat("BELLOWS_SIM_DEVICES: got '", text, "', expected a number from 1 to ", kMaxDevices));
  return static_cast<int>(count);
}

int64_t memory_from_environment() {
  const char* text = environment("BELLOWS_SIM_MEMORY");
  return text == nullptr ? kDefaultMemory : parse_bytes(text, "BELLOWS_SIM_MEMORY");
}

void check(const Options& options) {
  if (options.devices < 0 || options.devices > kMaxDevices)
    throw ValueError(
        concat("sim: devices: got ", options.devices, ", expected 0 to ", kMaxDevices));
  if (options.memory_bytes < 0)
    throw ValueError(
        concat("sim: memory_bytes: got ", options.memory_bytes, ", expected 0 or more"));
  if (options.copy_delay.count() < 0 || options.copy_delay > std::chrono::hours(24))
    throw ValueError(
        concat("sim: copy_delay: got ", options.copy_delay.count(), " ms, expected 0 to a day"));
}

// The process's switch.
struct Switch {
  std::mutex mutex;
  int fixed = 0;       // the number asked for; 0: grows with what device() is asked for
  size_t threads = 0;  // devices that backward can reach
};

Switch& the_switch() {
  static auto* own = new Switch;
  return *own;
}

// `least`: devices wanted at once.
void register_all(Switch& own, int least) {
  register_allocator();
  register_guard();
  // The guard's count is what autograd asks for: first more than there are, then as many.
  state().devices = std::max({own.fixed, least, kThreads});
  own.threads = Engine::settle();
  const int wanted = std::max(own.fixed, least);
  if (own.threads < static_cast<size_t>(wanted)) {
    state().devices = 0;
    throw EnvironmentError(
        "simulated devices cannot be switched on any more: a backward has already settled which "
        "devices this process "
        "has. Set BELLOWS_SIM_DEVICES, or call bellows::sim::enable() first in main()");
  }
  state().devices = wanted;
  register_operators();
  register_autocast();
  register_lstm();
  at::globalContext().lazyInitDevice(kType);  // before that, LibTorch takes no memory for pinned
}

// Callers hold the lock.
void switch_on(Switch& own, const Options& options, int least) {
  if (cuda_module() != nullptr) {
    throw EnvironmentError(
        "simulated devices cannot be used next to CUDA in one process, and CUDA is loaded. Set "
        "BELLOWS_SIM_DEVICES, or "
        "call bellows::sim::enable() before bellows::init()");
  }
  own.fixed = options.devices > 0 ? options.devices : devices_from_environment();
  state().memory_limit =
      options.memory_bytes > 0 ? options.memory_bytes : memory_from_environment();
  state().copy_delay_ms = options.copy_delay.count();
  std::vector<Capability> costs;
  if (const char* file = environment("BELLOWS_SIM_COST_MODEL")) costs = read_cost_model(file);
  register_all(own, own.fixed > 0 ? own.fixed : least);
  if (!costs.empty()) set_cost_model(std::move(costs));
}

// Whether what is asked for is what is in force.
bool in_force(const Options& options, const Switch& own) {
  const Options defaults;
  return (options.devices == 0 || options.devices == own.fixed) &&
         (options.memory_bytes == 0 || options.memory_bytes == state().memory_limit) &&
         (options.copy_delay == defaults.copy_delay ||
          options.copy_delay.count() == state().copy_delay_ms);
}

}  // namespace

State& state() {
  static auto* own = new State;
  return *own;
}

void enable(const Options& options) {
  Switch& own = the_switch();
  const std::lock_guard lock(own.mutex);
  check(options);
  if (!enabled()) return switch_on(own, options, 1);
  if (!in_force(options, own))
    throw EnvironmentError(
        concat("simulated devices are switched on already, with other options: ", device_count(),
               " devices of ", human_bytes(static_cast<double>(memory_limit()))));
}

bool wanted() {
  return environment("BELLOWS_SIM_DEVICES") != nullptr;
}

bool enabled() {
  return state().devices > 0;
}

int device_count() {
  return state().devices;
}

int64_t memory_limit() {
  return state().memory_limit;
}

c10::Device device(int index) {
  if (index < 0 || index >= kMaxDevices)
    throw ValueError(concat("sim: device: got ", index, ", expected 0 to ", kMaxDevices - 1));
  Switch& own = the_switch();
  const std::lock_guard lock(own.mutex);
  const int wanted = index + 1;
  if (!enabled()) switch_on(own, {}, wanted);
  if (wanted > state().devices) {
    if (own.fixed > 0 || static_cast<size_t>(wanted) > own.threads) {
      throw EnvironmentError(concat("sim:", index, ": there are ", device_count(),
                                    " simulated devices in this process; set BELLOWS_SIM_DEVICES=",
                                    wanted, " or more, or pass it to bellows::sim::enable()"));
    }
    state().devices = wanted;
  }
  return device_at(static_cast<c10::DeviceIndex>(index));
}

}  // namespace bellows::sim
