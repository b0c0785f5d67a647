// Naming and choosing devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "bellows/core/cuda_state.h"

namespace bellows {

/// "cpu", "cuda", "cuda:1", "sim:0" -> device ("cuda" is cuda:0, "sim" is sim:0; see sim.h). Throws
/// ValueError that lists what is understood and the nearest. Says nothing about whether the device
/// is there.
c10::Device parse_device(const std::string& text);

/// What parse_device() understands: "sim:1", where LibTorch's own str() says "hpu:1".
std::string device_name(c10::Device device);

/// A device and why it was taken: "cuda:0 (NVIDIA H200, 139 GiB)", "cpu (no NVIDIA driver)".
struct DeviceChoice {
  c10::Device device;
  std::string reason;
};

/// "auto", or what parse_device understands, checked to be usable; simulated devices are switched
/// on for it. `auto` takes sim:0 where they are on already, cuda:0 where CUDA is usable, the CPU
/// where the machine has none, and throws EnvironmentError where a driver is there but broken or
/// too old: training never falls to the CPU silently. A named device that is not usable is an
/// EnvironmentError that tells the state (see cuda_state.h), its remedy, and
/// `--device cpu` as the way around.
DeviceChoice pick_device(const std::string& text = "auto");

struct DeviceInfo {
  c10::Device device;
  std::string name;
  int64_t memory_bytes = 0;        // physical memory of the device, of the host for the CPU
  std::string compute_capability;  // "9.0"; empty for the CPU
};

/// Whether CUDA is usable in this process, and if not why and what to do: one answer made of what
/// is on disk, what is loaded, the driver, its devices and the kernels at hand.
CudaReport cuda_report();

/// The CPU, then every usable accelerator.
std::vector<DeviceInfo> list_devices();

}  // namespace bellows
