#include "bellows/data/batch_memory.h"

#include <algorithm>
#include <bit>
#include <list>
#include <mutex>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

struct Block {
  c10::DataPtr data;
  size_t bytes;
};

// To one of eight sizes between a power of two and the next, so that batches of nearly one size
// share blocks.
size_t rounded_up(size_t bytes) {
  constexpr size_t kLeast = 64;
  const size_t step = std::max(kLeast, std::bit_floor(std::max<size_t>(bytes, 1)) / 8);
  return (std::max<size_t>(bytes, 1) + step - 1) / step * step;
}

}  // namespace

struct BatchMemory::Pool {
  explicit Pool(c10::Allocator* chosen)
      : allocator(chosen != nullptr ? chosen : c10::GetAllocator(c10::kCPU)) {}

  // The smallest free block that holds `bytes` and is not twice as large, else a new one. Of equal
  // ones the latest in use, which the cache may still hold.
  Block take(size_t bytes) {
    {
      const std::lock_guard lock(mutex);
      auto best = free.end();
      for (auto block = free.begin(); block != free.end(); ++block) {
        const bool fits = block->bytes >= bytes && block->bytes / 2 <= bytes;
        if (fits && (best == free.end() || block->bytes <= best->bytes)) best = block;
      }
      if (best != free.end()) {
        Block block = std::move(*best);
        free.erase(best);
        free_bytes -= block.bytes;
        count(block.bytes);
        return block;
      }
      ++allocated;
      count(bytes);  // before it is there, so that a block given back meanwhile is not evicted
    }
    try {
      return {allocator->allocate(bytes), bytes};
    } catch (...) {
      const std::lock_guard lock(mutex);
      --allocated;
      --live;
      live_bytes -= bytes;
      throw;
    }
  }

  void count(size_t bytes) {
    ++live;
    live_bytes += bytes;
    peak_bytes = std::max(peak_bytes, live_bytes);
  }

  void give_back(Block block) {
    std::list<Block> evicted;  // freed without the lock
    const std::lock_guard lock(mutex);
    --live;
    live_bytes -= block.bytes;
    free_bytes += block.bytes;
    free.push_back(std::move(block));
    while (free_bytes + live_bytes > peak_bytes) {
      free_bytes -= free.front().bytes;
      evicted.splice(evicted.end(), free, free.begin());
    }
  }

  c10::Allocator* const allocator;
  std::mutex mutex;
  std::list<Block> free;  // the longest unused first
  size_t free_bytes = 0;
  size_t live_bytes = 0;
  size_t peak_bytes = 0;
  int64_t live = 0;
  int64_t allocated = 0;
};

BatchMemory::BatchMemory(c10::Allocator* allocator) : pool_(std::make_shared<Pool>(allocator)) {}

at::Tensor BatchMemory::empty(at::IntArrayRef sizes, at::ScalarType type) {
  auto bytes = static_cast<int64_t>(c10::elementSize(type));
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
      throw ValueError(concat("batch memory: got shape ", sizes, " of type ", type,
                              ", expected sizes of 0 or more and less than 2^63 bytes"));
    }
  }
  auto block = std::make_shared<Block>(pool_->take(rounded_up(static_cast<size_t>(bytes))));
  void* data = block->data.get();
  return at::from_blob(
      data, sizes, [pool = pool_, block](void*) { pool->give_back(std::move(*block)); },
      at::TensorOptions(type));
}

BatchMemory::Stats BatchMemory::stats() const {
  const std::lock_guard lock(pool_->mutex);
  return {pool_->live, std::ssize(pool_->free), pool_->allocated,
          pool_->live_bytes + pool_->free_bytes, pool_->peak_bytes};
}

}  // namespace bellows::data
