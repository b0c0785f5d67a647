#include "bellows/memory/report.h"

#include <algorithm>
#include <iomanip>
#include <set>
#include <sstream>

#include <c10/core/CachingDeviceAllocator.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/backend.h"
#include "bellows/device/device.h"
#include "bellows/device/memory.h"
#include "bellows/device/move.h"
#include "bellows/memory/host_memory.h"

namespace bellows::memory {
namespace {

std::string words(int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

// Sums memory on one device, each storage once.
class Sum {
 public:
  explicit Sum(c10::Device device) : device_(device) {}
  void add(int64_t& to, const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage() || !same_device(tensor.device(), device_))
      return;
    if (seen_.insert(tensor.storage().unsafeGetStorageImpl()).second)
      to += static_cast<int64_t>(tensor.storage().nbytes());
  }

 private:
  c10::Device device_;
  std::set<const void*> seen_;
};

void add_parts(Report& out, const Parts& parts) {
  Sum sum(out.device);
  if (parts.model != nullptr) {
    for (const auto& [name, tensor] : parts.model->named_parameters()) {
      sum.add(out.parameters, tensor);
      sum.add(out.gradients, tensor.grad());
    }
    for (const auto& [name, tensor] : parts.model->named_buffers()) sum.add(out.buffers, tensor);
  }
  if (parts.optimizer != nullptr)
    parts.optimizer->state_dict().for_each_tensor(
        [&](const std::string&, const at::Tensor& tensor) { sum.add(out.optimizer, tensor); });
}

c10::DeviceAllocator* allocator_of(c10::Device device) {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

std::string line(const std::string& name, int64_t bytes) {
  std::ostringstream out;
  out << std::left << std::setw(24) << name << std::right << std::setw(12) << words(bytes) << "\n";
  return out.str();
}

}  // namespace

Report report(c10::Device device, const Parts& parts) {
  Report out{.device = with_index(device)};
  add_parts(out, parts);
  if (is_accelerator(device)) {
    const MemoryStats stats = memory_stats(device);
    out.live = stats.allocated;
    out.cached = stats.reserved - stats.allocated;
    if (device.is_cuda()) {
      if (auto* allocator = allocator_of(device)) {
        const auto [free, total] = allocator->getMemoryInfo(out.device.index());
        out.outside = static_cast<int64_t>(total - free) - stats.reserved;
      }
    }
  } else if (device.is_cpu()) {
    out.resident = resident_bytes();
    if (host_memory_counted()) out.live = host_memory().live;
  }
  const int64_t known = out.parameters + out.buffers + out.gradients + out.optimizer;
  if (out.live) out.activations = std::max<int64_t>(*out.live - known, 0);
  return out;
}

std::string Report::table() const {
  std::string out = concat("memory of ", device_name(device), "\n");
  out += line("  parameters", parameters) + line("  buffers", buffers) +
         line("  gradients", gradients) + line("  optimizer state", optimizer);
  if (activations) out += line("  activations and batch", *activations);
  if (live) out += line("live", *live);
  if (!device.is_cpu()) out += line("cached", cached);
  if (outside) out += line("outside", *outside);
  if (live && outside) out += line("used", *live + cached + *outside);
  if (resident) out += line("resident (process)", *resident);
  if (!live)
    out += "live tensors are not counted: call bellows::memory::count_host_memory() first\n";
  return out;
}

PhasePeaks::PhasePeaks(c10::Device device) : device_(device) {
  if (device_.is_cpu()) count_host_memory();
}

void PhasePeaks::begin(Phase phase) {
  end();
  if (device_.is_cpu()) {
    reset_host_peak();
  } else {
    reset_peak(device_);
  }
  now_ = phase;
}

void PhasePeaks::end() {
  if (!now_) return;
  const int64_t peak = device_.is_cpu() ? host_memory().peak : memory_stats(device_).peak_allocated;
  int64_t& most = peaks_[static_cast<size_t>(*now_)];
  most = std::max(most, peak);
  now_.reset();
}

std::string PhasePeaks::table() const {
  return concat("peak memory of ", device_name(device_), "\n") +
         line("forward", peak(Phase::forward)) + line("backward", peak(Phase::backward)) +
         line("update", peak(Phase::update));
}

Live live_memory(c10::Device device) {
  if (!is_accelerator(device)) return {host_memory().live, host_memory().blocks};
  auto* allocator = allocator_of(with_index(device));
  if (allocator == nullptr) return {};
  const auto stats = allocator->getDeviceStats(with_index(device).index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {stats.allocated_bytes[kAll].current, stats.allocation[kAll].current};
}

LeakSentinel::LeakSentinel(c10::Device device, int64_t warm_up)
    : device_(device), warm_up_(warm_up) {
  if (device_.is_cpu()) count_host_memory();
}

void LeakSentinel::look() {
  looks_.push_back(live_memory(device_));
}

void LeakSentinel::check(int64_t tolerance_bytes) const {
  const size_t first = std::min(looks_.size(), static_cast<size_t>(warm_up_));
  if (looks_.size() < first + 2)
    throw ValueError(concat("leak sentinel: got ", looks_.size(), " looks, expected ", warm_up_ + 2,
                            " or more: call look() after each step"));
  const size_t half = first + (looks_.size() - first + 1) / 2;
  Live most;
  for (size_t i = first; i < half; ++i) {
    most.bytes = std::max(most.bytes, looks_[i].bytes);
    most.blocks = std::max(most.blocks, looks_[i].blocks);
  }
  const Live& last = looks_.back();
  if (last.bytes <= most.bytes + tolerance_bytes && last.blocks <= most.blocks) return;
  throw Error(concat("memory of ", device_name(device_), " grows: ", most.blocks, " tensors, ",
                     words(most.bytes), " at most up to look ", half, ", ", last.blocks,
                     " tensors, ", words(last.bytes), " at look ", looks_.size(),
                     ": something keeps a tensor of every step; a loss that is added up keeps its "
                     "graph (use item() or detach())"));
}

}  // namespace bellows::memory
