// The NVIDIA driver of this machine, asked directly: works without LibTorch and without a CUDA
// toolkit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace bellows {

/// A device as the driver names it. Indices are those LibTorch uses: both honour
/// CUDA_VISIBLE_DEVICES.
struct CudaDevice {
  std::string name;
  uint64_t memory_bytes = 0;
  int major = 0;  // compute capability
  int minor = 0;
  std::string pci_address =
      {};  // "0000:dc:00.0", as /sys/bus/pci/devices has it; empty where unknown
};

/// Facts, without judgement (that is cuda_state.h).
struct CudaDriver {
  bool library = false;       // libcuda.so.1 could be opened
  std::string library_error;  // what the loader said where it could not
  std::optional<int> init;    // what cuInit returned: 0 for success, 100 for "no device"
  std::string init_error;     // the driver's name for it, e.g. "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
  int version = 0;            // newest CUDA the driver can run: 13000 for 13.0; 0 where unknown
  std::vector<CudaDevice> devices;
  bool hardware = false;  // an NVIDIA display or compute device is on the PCI bus, or its kernel
                          // module is loaded
  std::string kernel_module;  // version of the loaded kernel module, e.g. "580.65.06"
  std::optional<std::string> visible_devices;  // CUDA_VISIBLE_DEVICES, where set
};

/// Whether libcuda.so.1 can be opened at all. Tens of microseconds; does not initialise the driver.
bool cuda_driver_present();

/// Opens libcuda.so.1 and initialises it (0.1 s and more on a machine with devices; a process must
/// not fork and use CUDA afterwards). Never throws for what it finds.
CudaDriver probe_cuda_driver();

}  // namespace bellows
