// Simulated time. Internal.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>

#include "bellows/device/sim.h"
#include "bellows/device/sim/queue.h"

namespace bellows::sim {

/// The host has waited for work that was done at `time`, in simulated seconds.
void host_reaches(double time);

/// The host's clock, in simulated seconds.
double host_now();

/// As set_cost_model() of sim.h throws.
void check_cost_model(const std::vector<Capability>& capabilities);

/// One operator on the current stream of the device, by its arguments and results (host views of
/// them). Only where a cost model is in force.
void charge_operator(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments,
                     c10::ArrayRef<c10::IValue> results, c10::Device device);
/// A copy of `bytes` on a queue, within one device, or over the link between two (the CPU among
/// them).
void charge_copy(Queue& queue, int64_t bytes, c10::Device from, c10::Device to);

/// Floating-point operations of a matrix product, a convolution, an attention or a gradient of one;
/// 0 for others. Counted as in torch/utils/flop_counter.py: two for each multiply-add.
double flops_of(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments,
                c10::ArrayRef<c10::IValue> results);

}  // namespace bellows::sim
