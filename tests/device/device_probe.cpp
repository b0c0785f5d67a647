// What a program sees that is started in a prepared environment: `device_probe COMMAND…`, one line
// of output each.
#include <cstring>
#include <filesystem>
#include <iostream>

#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/cuda_loader.h"
#include "bellows/device/cuda_module.h"
#include "bellows/device/device.h"
#include "bellows/device/init.h"
#include "bellows/device/sim.h"

namespace {

std::string driver_line() {
  const bellows::CudaDriver driver = bellows::probe_cuda_driver();
  std::string out =
      bellows::concat("library=", driver.library, " init=", driver.init.value_or(-1),
                      " name=", driver.init_error, " version=", driver.version, " devices=");
  for (const auto& device : driver.devices) {
    out += bellows::concat("[", device.name, "|", device.memory_bytes, "|", device.major, ".",
                           device.minor, "]");
  }
  return out;
}

std::string report_line() {
  const bellows::CudaReport report = bellows::cuda_report();
  return bellows::concat(bellows::to_string(report.state), ": ", report.sentence, "; ",
                         report.remedy);
}

std::string run(const std::string& command) {
  if (command == "init") return bellows::init(), "done";
  if (command == "present") return bellows::concat(bellows::cuda_driver_present());
  if (command == "driver") return driver_line();
  if (command == "report") return report_line();
  if (command == "list") return bellows::concat(bellows::list_devices().size());
  if (command == "load") return bellows::load_cuda(bellows::find_cuda_files()), "done";
  if (command == "module")
    return bellows::cuda_module() == nullptr ? "none" : bellows::cuda_module()->archs;
  if (command == "ask") return bellows::concat(at::detail::getCUDAHooks().hasCUDART());
  if (command == "backward") return at::ones({2}).requires_grad_().sum().backward(), "done";
  if (command == "sim")
    return bellows::concat(bellows::sim::device_count(), " of ", bellows::sim::memory_limit());
  if (command == "enable")
    return bellows::sim::enable({.devices = 2, .memory_bytes = 4096}), "done";
  if (command == "accelerator") return bellows::concat(at::getAccelerator().has_value());
  if (command == "hpu") return bellows::concat(at::empty({2}, c10::Device("hpu:0")).device());
  if (command == "ones")
    return bellows::concat(at::ones({2}, c10::Device("hpu:0")).sum().item<float>());
  if (command == "threads") {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return bellows::concat(std::distance(begin(tasks), end(tasks)));
  }
  if (command == "lazy_init") return at::detail::getCUDAHooks().init(), "done";
  return bellows::pick_device(command).reason;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    try {
      std::cout << argv[i] << " = " << run(argv[i]) << std::endl;
    } catch (const bellows::ValueError& error) {
      std::cout << argv[i] << " ! value error: " << error.what() << std::endl;
    } catch (const bellows::EnvironmentError& error) {
      std::cout << argv[i] << " ! environment error: " << error.what() << std::endl;
    } catch (const c10::Error& error) {
      std::cout << argv[i] << " ! LibTorch: " << error.what_without_backtrace() << std::endl;
    }
  }
}
