// Where batches get their memory: blocks that come back when a batch's tensors are released, and
// are used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

namespace bellows::data {

/// Tensors over reused blocks. A block serves one tensor at a time, and comes back when the last
/// reference to that tensor's storage is gone, on whatever thread; so a batch may be kept for as
/// long as one likes, also after this object is gone. Kept for reuse are at most as many bytes as
/// have been in use at one time. Thread-safe.
class BatchMemory {
 public:
  /// Blocks come from `allocator`, which must live for ever (null: LibTorch's own for the CPU; give
  /// the one for pinned memory to copy to a device without waiting).
  explicit BatchMemory(c10::Allocator* allocator = nullptr);

  /// A contiguous CPU tensor with arbitrary content, its storage not resizable. Throws ValueError
  /// for a negative size or more than 2^63 - 1 bytes.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type);

  struct Stats {
    int64_t live = 0;       ///< blocks in use now
    int64_t free = 0;       ///< blocks waiting to be used again
    int64_t allocated = 0;  ///< blocks ever taken from the allocator
    size_t bytes = 0;       ///< of live and free blocks together
    size_t peak_bytes = 0;  ///< most bytes in use at one time
  };
  Stats stats() const;

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

}  // namespace bellows::data
