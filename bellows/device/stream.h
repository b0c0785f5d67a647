// Streams and events of any device. On the CPU, where work is done when the call returns, they do
// nothing and every event is reached at once, so that code written for a device runs unchanged.
#pragma once

#include <chrono>
#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace bellows {

class Event;

/// A queue of work on one device. A value: copies name the same queue, which LibTorch owns. Any
/// thread may use it.
class Stream {
 public:
  /// The one this thread enqueues to now. A device without an index is the current device.
  static Stream current(c10::Device device);
  /// The device's own, which every thread starts with.
  static Stream default_of(c10::Device device);
  /// One from LibTorch's pool of 32, handed out in turn.
  static Stream from_pool(c10::Device device, bool high_priority = false);
  explicit Stream(c10::Stream stream) : stream_(stream) {}

  c10::Device device() const { return stream_.device(); }
  c10::Stream raw() const { return stream_; }
  /// The back-end's handle (cudaStream_t); null on the CPU.
  void* native_handle() const;

  /// Work enqueued from now on starts after `event`. The host does not wait.
  void wait(const Event& event) const;
  /// Blocks the calling thread until all enqueued work is done.
  void synchronize() const;
  /// Whether all enqueued work is done.
  bool query() const;
  bool operator==(const Stream& other) const { return stream_ == other.stream_; }

 private:
  c10::Stream stream_;
};

/// A mark in a stream. Move-only; one thread at a time.
class Event {
 public:
  /// Throws EnvironmentError where the device's kind is not loaded.
  explicit Event(c10::Device device, bool timing = false);

  /// Marks the work enqueued so far, again from anew if called again. Throws ValueError for a
  /// stream of another kind of device.
  void record(const Stream& stream);
  bool recorded() const { return recorded_; }
  /// Whether the marked work is done; true where nothing was recorded.
  bool query() const;
  /// Blocks the calling thread until the marked work is done.
  void synchronize() const;
  /// Time between two events with timing, both recorded and reached. Throws ValueError otherwise.
  std::chrono::duration<double, std::milli> elapsed_until(const Event& later) const;

 private:
  friend class Stream;
  c10::Device device_;
  bool timing_;
  bool recorded_ = false;
  std::optional<c10::Event> event_;       // none on the CPU
  std::chrono::nanoseconds host_time_{};  // on the CPU
};

/// Makes a device the current one of its kind for its own lifetime.
class DeviceGuard {
 public:
  explicit DeviceGuard(c10::Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  c10::Device previous_;
};

/// Makes a stream, and its device, the current ones of this thread for its own lifetime.
class StreamGuard {
 public:
  explicit StreamGuard(const Stream& stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  DeviceGuard device_;
  c10::Stream previous_;
};

}  // namespace bellows
