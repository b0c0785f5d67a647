// The part of LibTorch that stands behind a device. Internal.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace bellows {

/// Whether the device has memory and streams of its own (not the CPU, not Meta).
bool is_accelerator(c10::Device device);

/// LibTorch's functions for an accelerator. Throws EnvironmentError, with state and remedy, where
/// its kind is not loaded in this process.
c10::impl::VirtualGuardImpl backend_of(c10::Device device);

/// `device` with its index: the current one where it names none.
c10::Device with_index(c10::Device device);

}  // namespace bellows
