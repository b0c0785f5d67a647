// What a training holds in a device's memory.
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "bellows/nn/model.h"
#include "bellows/optim/optimizer.h"

namespace bellows::train {

/// Bytes on one device.
struct MemoryUse {
  int64_t parameters = 0;  // with buffers
  int64_t gradients = 0;
  int64_t optimizer = 0;  // its state
};
MemoryUse memory_use(const nn::Model& model, const optim::Optimizer& optimizer, c10::Device device);

/// "sim:1 held parameters 4.0 MiB, gradients 4.0 MiB, optimizer state 8.0 MiB; the rest is the
/// batch, activations and temporary tensors", with what to change: the context of an out-of-memory
/// error.
std::string describe_memory(const nn::Model& model, const optim::Optimizer& optimizer,
                            c10::Device device);

}  // namespace bellows::train
