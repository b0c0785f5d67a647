#include "bellows/device/backend.h"

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/device.h"

namespace bellows {

bool is_accelerator(c10::Device device) {
  return !device.is_cpu() && !device.is_meta();
}

c10::impl::VirtualGuardImpl backend_of(c10::Device device) {
  if (!c10::impl::hasDeviceGuardImpl(device.type())) {
    std::string why = "this LibTorch has no support for it";
    if (device.is_cuda()) {
      const CudaReport report = cuda_report();
      why = concat(report.sentence, "; ", report.remedy);
    }
    if (device.type() == c10::DeviceType::HPU)
      why =
          "simulated devices are not switched on; set BELLOWS_SIM_DEVICES, or call "
          "bellows::sim::enable()";
    throw EnvironmentError(concat(device_name(device), " cannot be used: ", why));
  }
  return c10::impl::VirtualGuardImpl(device.type());
}

c10::Device with_index(c10::Device device) {
  if (!is_accelerator(device) || device.has_index()) return device;
  return backend_of(device).getDevice();
}

}  // namespace bellows
