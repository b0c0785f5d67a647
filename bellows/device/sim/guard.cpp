// The device guard: current device and stream, events, waiting.
#include <algorithm>
#include <memory>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "bellows/device/sim/cost.h"
#include "bellows/device/sim/memory.h"
#include "bellows/device/sim/queue.h"
#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

using Clock = std::chrono::steady_clock;

// A mark in a stream: what LibTorch holds for an event.
struct Mark {
  Queue* queue = nullptr;
  uint64_t number = 0;                         // reached when that work of the queue is done
  double time = 0;                             // simulated, seconds
  std::shared_ptr<Clock::time_point> reached;  // real
};

Mark* mark_of(void* event) {
  return static_cast<Mark*>(event);
}

class Guard : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_at(exchange_device(device.index()));
  }
  c10::Device getDevice() const override { return device_at(current_device()); }
  void setDevice(c10::Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < state().devices) exchange_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(state().devices.load());
  }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return pool_stream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return new_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &queue_of(stream); }
  bool queryStream(const c10::Stream& stream) const override { return queue_of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    Queue& queue = queue_of(stream);
    queue.synchronize();
    host_reaches(queue.time());
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize_device(device);
    host_reaches(latest_time(device));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Mark;
    Mark& mark = *mark_of(*event);
    Queue& queue = queue_of(stream);
    auto reached = std::make_shared<Clock::time_point>(Clock::now());
    const uint64_t before = queue.last();
    mark = {&queue, before, std::max(queue.time(), host_now()), reached};
    if (!queue.done(before)) mark.number = queue.push([reached] { *reached = Clock::now(); });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const Mark& mark = *mark_of(event);
    Queue& queue = queue_of(stream);
    if (&queue == mark.queue) return;
    queue.charge(0, mark.time);
    if (!mark.queue->done(mark.number)) {
      queue.push([before = mark.queue, number = mark.number] { before->run_until(number); });
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || mark_of(event)->queue->done(mark_of(event)->number);
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    mark_of(event)->queue->run_until(mark_of(event)->number);
    host_reaches(mark_of(event)->time);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(queryEvent(from) && queryEvent(to), "sim: both events must have been reached");
    if (state().costs) return (mark_of(to)->time - mark_of(from)->time) * 1e3;
    return std::chrono::duration<double, std::milli>(*mark_of(to)->reached -
                                                     *mark_of(from)->reached)
        .count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete mark_of(event);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    static_cast<c10::DeviceAllocator*>(device_allocator())->recordStream(data, stream);
  }
};

}  // namespace

void register_guard() {
  static const c10::impl::DeviceGuardImplRegistrar registrar(kType, new Guard);
}

}  // namespace bellows::sim
