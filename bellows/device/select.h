// The decision behind pick_device(), without asking the machine. Internal.
#pragma once

#include <string>

#include "bellows/core/cuda_state.h"
#include "bellows/device/device.h"

namespace bellows {

struct Selection {
  DeviceChoice choice;
  std::string warning;  // to be logged; empty for none
};

/// As pick_device(), for a machine of which `report` and `driver` are known. Pure.
Selection select_device(const std::string& text, const CudaReport& report,
                        const CudaDriver& driver);

}  // namespace bellows
