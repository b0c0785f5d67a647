// The meta device, whose tensors have shapes and no memory, with what is needed to run a training
// step on it: memory as it would be taken is counted, and operators that LibTorch cannot run there
// from C++ give shapes. Internal.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace bellows::memory::detail {

/// Bytes in live tensors of the meta device, exact and with each block rounded up to 512 bytes.
struct MetaMemory {
  int64_t live = 0;
  int64_t peak = 0;
  int64_t rounded_live = 0;
  int64_t rounded_peak = 0;
};

/// Prepares the device, once: the count, and kernels.
void prepare_meta();
/// Of this process. One dry run at a time: take meta_mutex().
MetaMemory meta_memory();
void reset_meta_peak();

/// Registers shape functions for what LibTorch's C++ has none for: convolutions, batch and layer
/// norm, adaptive pooling, oneDNN's LSTM, fused optimizers.
void register_meta_kernels();

/// Runs `make` with every tensor that it makes from nothing put on the meta device.
void on_meta(const std::function<void()>& make);

}  // namespace bellows::memory::detail
