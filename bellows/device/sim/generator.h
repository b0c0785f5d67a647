// Random numbers of simulated devices: the CPU's generator, one for each. Internal.
#pragma once

#include <ATen/core/Generator.h>

namespace bellows::sim {

/// A new one, with LibTorch's default seed.
at::Generator make_generator(c10::DeviceIndex device);
/// The device's default one; made at its first use.
const at::Generator& default_generator(c10::DeviceIndex device);
/// The CPU generator that a generator of a simulated device draws from. LibTorch's error for one of
/// another kind.
at::Generator host_generator(const at::Generator& generator);

}  // namespace bellows::sim
