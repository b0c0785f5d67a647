#include "bellows/device/stream.h"

#include "bellows/core/clock.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/backend.h"
#include "bellows/device/device.h"

namespace bellows {

Stream Stream::current(c10::Device device) {
  if (!is_accelerator(device)) return default_of(device);
  return Stream(backend_of(device).getStream(with_index(device)));
}

Stream Stream::default_of(c10::Device device) {
  if (!is_accelerator(device))
    return Stream(c10::Stream(c10::Stream::DEFAULT, c10::Device(device.type())));
  return Stream(backend_of(device).getDefaultStream(with_index(device)));
}

Stream Stream::from_pool(c10::Device device, bool high_priority) {
  if (!is_accelerator(device)) return default_of(device);
  return Stream(backend_of(device).getStreamFromGlobalPool(with_index(device), high_priority));
}

void* Stream::native_handle() const {
  return is_accelerator(device()) ? stream_.native_handle() : nullptr;
}

void Stream::wait(const Event& event) const {
  if (event.event_) event.event_->block(stream_);
}

void Stream::synchronize() const {
  if (is_accelerator(device())) stream_.synchronize();
}

bool Stream::query() const {
  return !is_accelerator(device()) || stream_.query();
}

Event::Event(c10::Device device, bool timing) : device_(device), timing_(timing) {
  if (!is_accelerator(device)) return;
  backend_of(device);  // throws where it is not loaded
  event_.emplace(device.type(),
                 timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
}

void Event::record(const Stream& stream) {
  if (stream.device().type() != device_.type()) {
    throw ValueError(concat("event: got a stream of ", device_name(stream.device()),
                            ", expected one of ", device_name(device_)));
  }
  if (event_) {
    event_->record(stream.raw());
  } else {
    host_time_ = monotonic_clock().now();
  }
  recorded_ = true;
}

bool Event::query() const {
  return !event_ || event_->query();
}

void Event::synchronize() const {
  if (event_) event_->synchronize();
}

std::chrono::duration<double, std::milli> Event::elapsed_until(const Event& later) const {
  if (device_.type() != later.device_.type()) {
    throw ValueError(concat("time between events: got one of ", device_name(device_),
                            " and one of ", device_name(later.device_),
                            ", expected the same device"));
  }
  if (!timing_ || !later.timing_)
    throw ValueError(
        "time between events: made without timing; pass timing = true when making them");
  if (!recorded_ || !later.recorded_)
    throw ValueError("time between events: not recorded; record both first");
  if (!event_) return later.host_time_ - host_time_;
  if (!query() || !later.query())
    throw ValueError("time between events: not reached yet; synchronize the later one first");
  return std::chrono::duration<double, std::milli>(event_->elapsedTime(*later.event_));
}

DeviceGuard::DeviceGuard(c10::Device device) : previous_(c10::kCPU) {
  if (is_accelerator(device)) previous_ = backend_of(device).exchangeDevice(with_index(device));
}

DeviceGuard::~DeviceGuard() {
  if (is_accelerator(previous_))
    c10::impl::VirtualGuardImpl(previous_.type()).uncheckedSetDevice(previous_);
}

StreamGuard::StreamGuard(const Stream& stream) : device_(stream.device()), previous_(stream.raw()) {
  if (is_accelerator(stream.device()))
    previous_ = backend_of(stream.device()).exchangeStream(stream.raw());
}

StreamGuard::~StreamGuard() {
  if (is_accelerator(previous_.device()))
    c10::impl::VirtualGuardImpl(previous_.device_type()).exchangeStream(previous_);
}

}  // namespace bellows
