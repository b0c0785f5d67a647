// Runs any operator of a simulated device as the CPU's. Internal.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace bellows::sim {

/// Checks that all tensors are on one device, waits for the current stream, runs the CPU's kernel
/// on host views, and brings the results to the device. A boxed kernel.
void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace bellows::sim
