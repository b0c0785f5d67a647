// Counts the host memory of LibTorch's tensors, which LibTorch does not do.
#pragma once

#include <cstdint>

namespace bellows::memory {

/// Of tensors on the CPU that were made since counting began and are still there. Bytes as the
/// system's allocator gives them: a little more than asked for. Memory that a tensor only refers to
/// (from_blob, a mapped file, pinned memory) is not counted.
struct HostMemory {
  int64_t live = 0;    // bytes
  int64_t peak = 0;    // the most since the last reset_host_peak()
  int64_t blocks = 0;  // how many storages
};

/// From now on LibTorch's CPU allocator counts; for the rest of the process, idempotent. To be
/// called before other threads make tensors. Costs two atomic additions a tensor.
void count_host_memory();
bool host_memory_counted();
/// Zeros while nothing counts. Any thread.
HostMemory host_memory();
void reset_host_peak();

/// Resident memory of this process in bytes, as the system has it.
int64_t resident_bytes();

}  // namespace bellows::memory
