// What LibTorch asks about the device kind as a whole. It keeps the first answer to "which hooks
// are there", so these are there from the start; until simulated devices are switched on they
// answer as if there were none.
#include <ATen/detail/HPUHooksInterface.h>
#include <c10/util/Exception.h>

#include "bellows/device/sim/generator.h"
#include "bellows/device/sim/memory.h"
#include "bellows/device/sim/queue.h"
#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

bool on() {
  return state().devices > 0;
}

c10::DeviceIndex or_current(c10::DeviceIndex device) {
  return device < 0 ? current_device() : device;
}

class Hooks : public at::HPUHooksInterface {
 public:
  void init() const override {
    TORCH_CHECK(on(), "no simulated devices are switched on (bellows::sim::enable)");
  }
  bool hasHPU() const override { return on(); }
  bool isBuilt() const override { return on(); }
  bool isAvailable() const override { return on(); }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(state().devices.load());
  }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return device < deviceCount(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchange_device(device);
  }
  c10::Device getDeviceFromPtr(void*) const override {
    TORCH_CHECK(false, "simulated devices lie in host memory: a pointer does not tell the device");
  }
  bool isPinnedPtr(const void* data) const override { return on() && is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    init();
    return pinned_allocator();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(or_current(device));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return make_generator(or_current(device));
  }
};

[[maybe_unused]] const bool registered = [] {
  at::HPUHooksRegistry()->Register("HPUHooks", [](at::HPUHooksArgs) {
    return std::unique_ptr<at::HPUHooksInterface>(new Hooks);
  });
  return true;
}();

}  // namespace
}  // namespace bellows::sim
