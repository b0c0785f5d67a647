#include "bellows/device/sim/memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <list>
#include <map>
#include <memory>
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
  uint64_t home_number = 0;                          // how far that was when it was given back
  std::vector<std::pair<Queue*, uint64_t>> used_by;  // further streams, and how far they must come

  bool passed() const {
    return std::all_of(used_by.begin(), used_by.end(),
                       [](const auto& use) { return use.first->done(use.second); });
  }
};

using Wait = std::pair<Queue*, uint64_t>;

// One device. Callers hold the mutex.
class Arena {
 public:
  std::mutex mutex;
  DeviceStats stats;

  Block* take(size_t size, Queue* home) {
    collect();
    for (auto it = free_.rbegin(); it != free_.rend(); ++it) {
      Block* block = *it;
      if (block->home != home || block->size != size) continue;
      free_.erase(std::next(it).base());
      free_bytes_ -= block->size;
      return block;
    }
    return nullptr;
  }

  bool has_room(size_t size) const {
    return stats.reserved_bytes[kAll].current + static_cast<int64_t>(size) <= state().memory_limit;
  }

  Block* make(size_t size, Queue* home, c10::DeviceIndex device) {
    if (!has_room(size)) return nullptr;
    void* pointer = std::aligned_alloc(kAlignment, size);
    if (pointer == nullptr) return nullptr;
    stats.reserved_bytes[kAll].increase(size);
    stats.segment[kAll].increase(1);
    ++stats.num_device_alloc;
    return new Block{pointer, size, 0, device, home, 0, {}};
  }

  void hand_out(Block* block, size_t requested) {
    block->requested = requested;
    stats.allocated_bytes[kAll].increase(block->size);
    stats.active_bytes[kAll].increase(block->size);
    stats.requested_bytes[kAll].increase(requested);
    stats.allocation[kAll].increase(1);
    stats.active[kAll].increase(1);
    most_live_ = std::max(most_live_, stats.allocated_bytes[kAll].current);
  }

  void take_back(Block* block) {
    stats.allocated_bytes[kAll].decrease(block->size);
    stats.requested_bytes[kAll].decrease(block->requested);
    stats.allocation[kAll].decrease(1);
    block->home_number = block->home->last();
    for (auto& [queue, number] : block->used_by) number = queue->last();
    in_use_.push_back(block);
    collect();
    if (device_idle(block->device))
      trim(most_live_);  // else a program that forgot to record a stream may read it
  }

  // What must have run before all that was given back can be released.
  std::vector<Wait> waits() const {
    std::vector<Wait> out;
    for (const auto* blocks : {&free_, &in_use_})
      for (const Block* block : *blocks) {
        out.emplace_back(block->home, block->home_number);
        out.insert(out.end(), block->used_by.begin(), block->used_by.end());
      }
    return out;
  }

  void release_cache() {
    collect();
    trim(0);
  }

 private:
  // Blocks whose other streams have passed become free.
  void collect() {
    for (auto it = in_use_.begin(); it != in_use_.end();) {
      Block* block = *it;
      if (!block->passed()) {
        ++it;
        continue;
      }
      it = in_use_.erase(it);
      stats.active_bytes[kAll].decrease(block->size);
      stats.active[kAll].decrease(1);
      block->used_by.clear();
      free_.push_back(block);
      free_bytes_ += block->size;
    }
  }

  // Keeps at most `most` bytes: goes the longest unused, as far as no work reads it any more.
  void trim(int64_t most) {
    for (auto it = free_.begin(); it != free_.end() && static_cast<int64_t>(free_bytes_) > most;) {
      Block* block = *it;
      if (!block->home->done(block->home_number)) {
        ++it;
        continue;
      }
      it = free_.erase(it);
      free_bytes_ -= block->size;
      stats.reserved_bytes[kAll].decrease(block->size);
      stats.segment[kAll].decrease(1);
      ++stats.num_device_free;
      std::free(block->pointer);
      delete block;
    }
  }

  std::list<Block*> free_;  // the longest unused first
  size_t free_bytes_ = 0;
  int64_t most_live_ = 0;     // bytes that were live at one time; as many are kept for reuse
  std::list<Block*> in_use_;  // given back, but still in use by another stream
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
      Arena& arena = arena_of(device);
      std::unique_lock lock(arena.mutex);
      release_all(arena, device, lock);
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
      release_all(arena, device, lock);
      block = arena.make(size, home, device);
    }
    if (block == nullptr) fail(arena, bytes, device);
    arena.hand_out(block, bytes);
    return block;
  }

  // Work still to be done reads what is to be released: it runs first, without the lock.
  static void release_all(Arena& arena, c10::DeviceIndex device,
                          std::unique_lock<std::mutex>& lock) {
    const auto waits = arena.waits();
    lock.unlock();
    drain_device(device);
    for (const auto& [queue, number] : waits) queue->run_until(number);
    lock.lock();
    arena.release_cache();
  }

  [[noreturn]] static void fail(Arena& arena, size_t bytes, c10::DeviceIndex device) {
    ++arena.stats.num_ooms;
    const auto limit = static_cast<size_t>(state().memory_limit.load());
    const auto held = static_cast<size_t>(arena.stats.reserved_bytes[kAll].current);
    if (arena.has_room(rounded(bytes, kGrain))) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the host has no memory left for sim:", int{device},
                       ": tried to allocate ", words(bytes), ", within the device's limit of ",
                       words(limit));
    }
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
    ranges_.emplace(static_cast<const char*>(pointer), Range{bytes});
    return {pointer, pointer, &give_back, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  bool contains(const void* pointer) {
    const std::lock_guard lock(mutex_);
    return find(pointer) != ranges_.end();
  }

  // Null where the pointer is not into pinned memory.
  std::shared_ptr<void> use(const void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto range = find(pointer);
    if (range == ranges_.end()) return nullptr;
    ++range->second.uses;
    auto* start = const_cast<char*>(range->first);
    return {start, [this](void* used) { end_use(used); }};
  }

  static PinnedMemory& get() {
    static auto* memory = new PinnedMemory;  // tensors may be dropped as late as at exit
    return *memory;
  }

 private:
  struct Range {
    size_t bytes;
    int uses = 0;          // by copies that have not run
    bool dropped = false;  // to be freed with the last use
  };
  using Ranges = std::map<const char*, Range>;

  Ranges::iterator find(const void* pointer) {
    auto after = ranges_.upper_bound(static_cast<const char*>(pointer));
    if (after == ranges_.begin()) return ranges_.end();
    --after;
    return static_cast<const char*>(pointer) < after->first + after->second.bytes ? after
                                                                                  : ranges_.end();
  }

  void end_use(void* start) {
    const std::lock_guard lock(mutex_);
    const auto range = ranges_.find(static_cast<const char*>(start));
    if (--range->second.uses > 0 || !range->second.dropped) return;
    ranges_.erase(range);
    std::free(start);
  }

  static void give_back(void* start) {
    PinnedMemory& memory = get();
    const std::lock_guard lock(memory.mutex_);
    const auto range = memory.ranges_.find(static_cast<const char*>(start));
    range->second.dropped = true;
    if (range->second.uses > 0) return;
    memory.ranges_.erase(range);
    std::free(start);
  }

  std::mutex mutex_;
  Ranges ranges_;  // by start
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

std::shared_ptr<void> use_pinned(const void* pointer) {
  return PinnedMemory::get().use(pointer);
}

void register_allocator() {
  c10::SetAllocator(kType, device_allocator());
}

}  // namespace bellows::sim
