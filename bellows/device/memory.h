// Memory of a device, and waiting for it. All of it is allowed, and does nothing, on the CPU.
#pragma once

#include <cstdint>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace bellows {

/// Bytes, as LibTorch's caching allocator counts them; all zero for the CPU, which it does not
/// count.
struct MemoryStats {
  int64_t allocated = 0;       // in live tensors
  int64_t peak_allocated = 0;  // the most since the last reset
  int64_t reserved = 0;        // taken from the device, in use or cached
  int64_t peak_reserved = 0;
};

/// For a device without an index: the current one. Throws EnvironmentError where its kind is not
/// loaded.
MemoryStats memory_stats(c10::Device device);

/// Peaks start anew from what is there now.
void reset_peak(c10::Device device);

/// Gives cached, unused memory back to the device, for other programs; of all devices of that kind.
void empty_cache(c10::Device device);

/// LibTorch's allocator of host memory that copies to and from the device can use behind the
/// program's back (page-locked); null for the CPU. Lives for ever. Throws EnvironmentError where
/// the device's kind is not loaded.
c10::Allocator* pinned_memory(c10::Device device);

/// Blocks until all work on all streams of the device is done.
void synchronize(c10::Device device);

}  // namespace bellows
