#include "bellows/device/sim/generator.h"

#include <array>
#include <memory>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/util/Exception.h>

#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

class Generator : public c10::GeneratorImpl {
 public:
  Generator(c10::DeviceIndex device, at::Generator host)
      : GeneratorImpl(device_at(device), c10::DispatchKeySet(c10::DispatchKey::HPU)),
        host_(std::move(host)) {}

  void set_current_seed(uint64_t seed) override { host_.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host_.set_offset(offset); }
  uint64_t get_offset() const override { return host_.get_offset(); }
  uint64_t current_seed() const override { return host_.current_seed(); }
  uint64_t seed() override { return host_.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    host_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host_.unsafeGetGeneratorImpl()->get_state();
  }
  const at::Generator& host() const { return host_; }

 private:
  Generator* clone_impl() const override { return new Generator(device_.index(), host_.clone()); }

  mutable at::Generator host_;
};

}  // namespace

at::Generator make_generator(c10::DeviceIndex device) {
  return at::make_generator<Generator>(device, at::detail::createCPUGenerator());
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  struct Slot {
    std::once_flag once;
    at::Generator generator;
  };
  static auto* all = new std::array<Slot, kMaxDevices>;
  TORCH_CHECK(device >= 0 && device < state().devices, "sim:", int{device}, " does not exist");
  Slot& slot = (*all)[static_cast<size_t>(device)];
  std::call_once(
      slot.once, [&] {  // a program may have seeded the process before there were devices
        slot.generator = make_generator(device);
        slot.generator.set_current_seed(at::detail::getDefaultCPUGenerator().current_seed());
      });
  return slot.generator;
}

at::Generator host_generator(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == kType,
              "expected a generator of a simulated device, got one of ", generator.device());
  return generator.get<Generator>()->host();
}

}  // namespace bellows::sim
