#include "bellows/memory/meta.h"

#include <atomic>
#include <mutex>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>

#include "bellows/device/interceptor.h"

namespace bellows::memory::detail {
namespace {

constexpr int64_t kGrain = 512;  // bytes: LibTorch's caching allocators and the simulated one

// A count with its peak.
class Count {
 public:
  void add(int64_t bytes) {
    const int64_t now = live_.fetch_add(bytes) + bytes;
    int64_t most = peak_.load();
    while (now > most && !peak_.compare_exchange_weak(most, now)) {
    }
  }
  void reset_peak() { peak_ = live_.load(); }
  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }

 private:
  std::atomic<int64_t> live_ = 0, peak_ = 0;
};

Count exact, rounded;

int64_t round_up(int64_t bytes) {
  return (bytes + kGrain - 1) / kGrain * kGrain;
}

void release(void* context) {
  const std::unique_ptr<int64_t> bytes(static_cast<int64_t*>(context));
  exact.add(-*bytes);
  rounded.add(-round_up(*bytes));
}

// Gives no memory, as LibTorch's own, but counts it.
class Allocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const auto bytes = static_cast<int64_t>(size);
    if (bytes == 0) return {nullptr, c10::Device(c10::kMeta)};
    exact.add(bytes);
    rounded.add(round_up(bytes));
    return {nullptr, new int64_t(bytes), &release, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
};

}  // namespace

void prepare_meta() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::SetAllocator(c10::kMeta, new Allocator, /*priority=*/100);
    register_meta_kernels();
  });
}

MetaMemory meta_memory() {
  return {exact.live(), exact.peak(), rounded.live(), rounded.peak()};
}

void reset_meta_peak() {
  exact.reset_peak();
  rounded.reset_peak();
}

void on_meta(const std::function<void()>& make) {
  const InterceptGuard guard([](const OperatorCall& call, std::vector<c10::IValue>& stack) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        std::string(call.name()).c_str(), std::string(call.overload()).c_str());
    const auto& arguments = op.schema().arguments();
    const size_t first = stack.size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() != "device") continue;
      c10::IValue& device = stack[first + i];
      if (device.isNone() || (device.isDevice() && device.toDevice().is_cpu()))
        device = c10::Device(c10::kMeta);
    }
    return false;
  });
  make();
}

}  // namespace bellows::memory::detail
