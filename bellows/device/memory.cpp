#include "bellows/device/memory.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "bellows/device/backend.h"

namespace bellows {
namespace {

// Null for the CPU, and for an accelerator that nothing was allocated on yet.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  if (!is_accelerator(device)) return nullptr;
  backend_of(device);  // throws where it is not loaded
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

}  // namespace

MemoryStats memory_stats(c10::Device device) {
  auto* allocator = allocator_of(device);
  if (allocator == nullptr) return {};
  const auto stats = allocator->getDeviceStats(with_index(device).index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto& allocated = stats.allocated_bytes[kAll];
  const auto& reserved = stats.reserved_bytes[kAll];
  return {allocated.current, allocated.peak, reserved.current, reserved.peak};
}

void reset_peak(c10::Device device) {
  if (auto* allocator = allocator_of(device)) allocator->resetPeakStats(with_index(device).index());
}

void empty_cache(c10::Device device) {
  if (auto* allocator = allocator_of(device)) allocator->emptyCache();
}

c10::Allocator* pinned_memory(c10::Device device) {
  if (!is_accelerator(device)) return nullptr;
  backend_of(device);  // throws where it is not loaded
  return at::globalContext().getPinnedMemoryAllocator(device.type());
}

void synchronize(c10::Device device) {
  if (is_accelerator(device)) backend_of(device).synchronizeDevice(with_index(device).index());
}

}  // namespace bellows
