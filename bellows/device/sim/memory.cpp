#include "bellows/device/sim/memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include "bellows/core/text.h"
#include "bellows/device/sim/queue.h"
#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

constexpr size_t kGrain = 512;      // bytes; block sizes are multiples
constexpr size_t kAlignment = 64;   // bytes; as LibTorch's CPU allocator
constexpr size_t kPageSize = 4096;  // bytes
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

size_t rounded(size_t bytes, size_t grain) {
  return (bytes + grain - 1) / grain * grain;
}

std::string words(size_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

struct Block {
  void* pointer;
  size_t size;       // bytes, rounded
  size_t requested;  // bytes
  c10::DeviceIndex device;
  Queue* home;                                       // it was made on
  std::vector<std::pair<Queue*, uint64_t>> used_by;  // further streams, and how far they must come

  bool passed() const {
    return std::all_of(used_by.begin(), used_by.end(),
                       [](const auto& use) { return use.first->done(use.second); });
  }
};

// One device. Callers hold the mutex.
class Arena {
 public:
  std::mutex mutex;
  DeviceStats stats;

  Block* take(size_t size, Queue* home) {
    collect();
    const auto found = free_.find({home, size});
    if (found == free_.end() || found->second.empty()) return nullptr;
    Block* block = found->second.back();
    found->second.pop_back();
    return block;
  }

  Block* make(size_t size, Queue* home, c10::DeviceIndex device) {
    const auto& reserved = stats.reserved_bytes[kAll];
    if (reserved.current + static_cast<int64_t>(size) > state().memory_limit) return nullptr;
    void* pointer = std::aligned_alloc(kAlignment, size);
    if (pointer == nullptr) return nullptr;
    stats.reserved_bytes[kAll].increase(size);
    stats.segment[kAll].increase(1);
    ++stats.num_device_alloc;
    return new Block{pointer, size, 0, device, home, {}};
  }

  void hand_out(Block* block, size_t requested) {
    block->requested = requested;
    stats.allocated_bytes[kAll].increase(block->size);
    stats.active_bytes[kAll].increase(block->size);
    stats.requested_bytes[kAll].increase(requested);
    stats.allocation[kAll].increase(1);
    stats.active[kAll].increase(1);
  }

  void take_back(Block* block) {
    stats.allocated_bytes[kAll].decrease(block->size);
    stats.requested_bytes[kAll].decrease(block->requested);
    stats.allocation[kAll].decrease(1);
    for (auto& [queue, number] : block->used_by) number = queue->last();
    in_use_.push_back(block);
    collect();
  }

  // To be called when all work of the device is done.
  void release_cache() {
    collect();
    for (auto& [key, blocks] : free_)
      for (Block* block : blocks) release(block);
    free_.clear();
  }

 private:
  // Blocks whose other streams have passed become free.
  void collect() {
    const auto still = std::partition(in_use_.begin(), in_use_.end(),
                                      [](const Block* block) { return !block->passed(); });
    for (auto it = still; it != in_use_.end(); ++it) {
      stats.active_bytes[kAll].decrease((*it)->size);
      stats.active[kAll].decrease(1);
      (*it)->used_by.clear();
      free_[{(*it)->home, (*it)->size}].push_back(*it);
    }
    in_use_.erase(still, in_use_.end());
  }

  void release(Block* block) {
    stats.reserved_bytes[kAll].decrease(block->size);
    stats.segment[kAll].decrease(1);
    ++stats.num_device_free;
    std::free(block->pointer);
    delete block;
  }

  std::map<std::pair<Queue*, size_t>, std::vector<Block*>> free_;
  std::vector<Block*> in_use_;  // given back, but still in use by another stream
};

Arena& arena_of(c10::DeviceIndex device) {
  static auto* all =
      new std::array<Arena, kMaxDevices>;  // tensors may be dropped as late as at exit
  TORCH_CHECK(device >= 0 && device < kMaxDevices, "sim:", int{device}, " does not exist");
  return (*all)[static_cast<size_t>(device)];
}

class DeviceMemory : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex device = current_device();
    if (bytes == 0) return {nullptr, device_at(device)};
    Block* block = find(bytes, device);
    return {block->pointer, block, &give_back, device_at(device)};
  }

  // As a c10::Allocator whose context is not the pointer: raw allocation is not offered.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  bool initialized() override { return state().devices > 0; }

  void emptyCache(c10::MempoolId_t) override {
    for (c10::DeviceIndex device = 0; device < state().devices; ++device) {
      drain_device(device);
      Arena& arena = arena_of(device);
      const std::lock_guard lock(arena.mutex);
      arena.release_cache();
    }
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_deleter() != &give_back) return;  // of no block: empty, or not ours
    auto* block = static_cast<Block*>(data.get_context());
    Queue* queue = &queue_of(stream);
    Arena& arena = arena_of(block->device);
    const std::lock_guard lock(arena.mutex);
    if (queue != block->home) block->used_by.emplace_back(queue, 0);
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    Arena& arena = arena_of(device);
    const std::lock_guard lock(arena.mutex);
    return arena.stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
    Arena& arena = arena_of(device);
    const std::lock_guard lock(arena.mutex);
    arena.stats.num_ooms = arena.stats.num_alloc_retries = 0;
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](auto& stat) { stat.reset_peak(); });
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {
    Arena& arena = arena_of(device);
    const std::lock_guard lock(arena.mutex);
    const int64_t limit = state().memory_limit;
    return {static_cast<size_t>(limit - arena.stats.reserved_bytes[kAll].current),
            static_cast<size_t>(limit)};
  }

 private:
  static Block* find(size_t bytes, c10::DeviceIndex device) {
    const size_t size = rounded(bytes, kGrain);
    Queue* home = &current_queue(device_at(device));
    Arena& arena = arena_of(device);
    std::unique_lock lock(arena.mutex);
    Block* block = arena.take(size, home);
    if (block == nullptr) block = arena.make(size, home, device);
    if (block == nullptr) {
      ++arena.stats.num_alloc_retries;
      lock.unlock();
      drain_device(device);
      lock.lock();
      arena.release_cache();
      block = arena.make(size, home, device);
    }
    if (block == nullptr) fail(arena, bytes, device);
    arena.hand_out(block, bytes);
    return block;
  }

  [[noreturn]] static void fail(Arena& arena, size_t bytes, c10::DeviceIndex device) {
    ++arena.stats.num_ooms;
    const auto limit = static_cast<size_t>(state().memory_limit.load());
    const auto held = static_cast<size_t>(arena.stats.reserved_bytes[kAll].current);
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "sim:", int{device}, " is out of memory: tried to allocate ",
        words(bytes), "; of its ", words(limit), ", ", words(held), " are in use by tensors and ",
        words(limit - std::min(held, limit)), " are free (BELLOWS_SIM_MEMORY sets the limit)");
    std::abort();  // not reached
  }

  static void give_back(void* context) {
    auto* block = static_cast<Block*>(context);
    Arena& arena = arena_of(block->device);
    const std::lock_guard lock(arena.mutex);
    arena.take_back(block);
  }

  template <class Fn>
  static void for_each_stat(c10::DeviceIndex device, Fn fn) {
    Arena& arena = arena_of(device);
    const std::lock_guard lock(arena.mutex);
    DeviceStats& stats = arena.stats;
    for (auto* array : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes,
                        &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes})
      for (auto& stat : *array) fn(stat);
  }
};

class PinnedMemory : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    void* pointer = std::aligned_alloc(kPageSize, rounded(bytes, kPageSize));
    TORCH_CHECK_WITH(OutOfMemoryError, pointer != nullptr,
                     "the host is out of memory: tried to allocate ", words(bytes),
                     " of pinned memory");
    const std::lock_guard lock(mutex_);
    ranges_.emplace(static_cast<const char*>(pointer), bytes);
    return {pointer, pointer, &give_back, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  bool contains(const void* pointer) {
    const std::lock_guard lock(mutex_);
    auto after = ranges_.upper_bound(static_cast<const char*>(pointer));
    if (after == ranges_.begin()) return false;
    --after;
    return static_cast<const char*>(pointer) < after->first + after->second;
  }

  static PinnedMemory& get() {
    static auto* memory = new PinnedMemory;  // tensors may be dropped as late as at exit
    return *memory;
  }

 private:
  static void give_back(void* pointer) {
    PinnedMemory& memory = get();
    {
      const std::lock_guard lock(memory.mutex_);
      memory.ranges_.erase(static_cast<const char*>(pointer));
    }
    std::free(pointer);
  }

  std::mutex mutex_;
  std::map<const char*, size_t> ranges_;  // bytes by start
};

}  // namespace

c10::Allocator* device_allocator() {
  static auto* memory = new DeviceMemory;
  return memory;
}

c10::Allocator* pinned_allocator() {
  return &PinnedMemory::get();
}

bool is_pinned(const void* pointer) {
  return PinnedMemory::get().contains(pointer);
}

void register_allocator() {
  c10::SetAllocator(kType, device_allocator());
}

}  // namespace bellows::sim
