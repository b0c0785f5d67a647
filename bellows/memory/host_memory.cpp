#include "bellows/memory/host_memory.h"

#include <atomic>
#include <fstream>
#include <malloc.h>
#include <mutex>
#include <unistd.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace bellows::memory {
namespace {

std::atomic<int64_t> live = 0, peak = 0, blocks = 0;
std::atomic<bool> counted = false;
c10::DeleterFnPtr inner_deleter = nullptr;

void add(int64_t bytes) {
  const int64_t now = live.fetch_add(bytes) + bytes;
  int64_t most = peak.load();
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
  ++blocks;
}

void release(void* pointer) {
  live -= static_cast<int64_t>(::malloc_usable_size(pointer));
  --blocks;
  inner_deleter(pointer);
}

class Counting : public c10::Allocator {
 public:
  explicit Counting(c10::Allocator& inner) : inner_(inner) {}
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner_.allocate(bytes);
    if (data.get() == nullptr || data.get() != data.get_context()) return data;
    add(static_cast<int64_t>(::malloc_usable_size(data.get())));
    void* pointer = data.release_context();
    return {pointer, pointer, &release, data.device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_.copy_data(to, from, bytes);
  }

 private:
  c10::Allocator& inner_;
};

}  // namespace

void count_host_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::Allocator* inner = c10::GetDefaultCPUAllocator();
    inner_deleter = inner->raw_deleter();
    c10::SetCPUAllocator(new Counting(*inner), /*priority=*/100);
    counted = true;
  });
}

bool host_memory_counted() {
  return counted;
}

HostMemory host_memory() {
  return {live, peak, blocks};
}

void reset_host_peak() {
  peak = live.load();
}

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * int64_t{::sysconf(_SC_PAGESIZE)};
}

}  // namespace bellows::memory
