// NCCL, which lies in the CUDA module: opened at run time, like all CUDA code. Internal.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "bellows/parallel/store.h"
#include "bellows/parallel/transport.h"

namespace bellows::parallel {

/// What the module's entry point takes; the store lives as long as the result.
struct NcclArguments {
  const Store& store;
  int64_t rank = 0;
  int64_t size = 1;
  c10::Device device;
  std::chrono::milliseconds timeout{};
};

/// Why groups of this process cannot use NCCL, as half a sentence; empty: they can.
std::string why_no_nccl();

/// CUDA devices that this process sees; 0 where CUDA is not loaded.
int64_t cuda_device_count();

/// Takes tensors of `device` alone. Meets the others over the store, at the first collective.
/// Operations run on a stream of NCCL's own, after what the caller's stream holds; `done` comes
/// once the device is done with them, from a thread of the transport. Messages have no tags (they
/// meet in the order of calls) and come from named ranks only. Throws EnvironmentError where
/// why_no_nccl() has a reason.
std::unique_ptr<Transport> nccl_transport(const NcclArguments& arguments);

/// Throws EnvironmentError naming both where two ranks have one device. `devices`: by rank, a name
/// that is the device's own in the whole world.
void check_own_devices(const std::vector<std::string>& devices);

/// The name of a CUDA device for check_own_devices: machine and the device's own number, whatever
/// CUDA_VISIBLE_DEVICES shows.
std::string device_identity(c10::Device device);

}  // namespace bellows::parallel

/// The module's functions of this floor, found by name (device/cuda_loader.h).
extern "C" bellows::parallel::Transport* bellows_nccl_transport(
    const bellows::parallel::NcclArguments& arguments);
/// The PCI address of a device, "0000:1b:00.0", into 32 bytes.
extern "C" void bellows_cuda_pci_address(int device, char* text);
