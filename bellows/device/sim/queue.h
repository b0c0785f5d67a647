// The streams of simulated devices and the marks in them. Internal.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace bellows::sim {

/// Work in order. Whoever waits runs it; what nobody waits for, a thread in the background runs
/// after the delay. Any thread may call anything. Lives as long as the process.
class Queue {
 public:
  using Work = std::function<void()>;

  explicit Queue(c10::Stream stream) : stream_(stream) {}
  c10::Stream stream() const { return stream_; }

  /// Work behind what is there. Returns its number, from 1 on. What it throws comes out of the next
  /// synchronize().
  uint64_t push(Work work);
  /// The number of the last work pushed.
  uint64_t last() const { return pushed_.load(std::memory_order_acquire); }
  bool done(uint64_t number) const { return done_.load(std::memory_order_acquire) >= number; }
  bool idle() const { return done(last()); }
  /// Returns when work `number`, and so all before it, has run.
  void run_until(uint64_t number);
  void drain() { run_until(last()); }
  /// As drain(), and rethrows the first error of work since the last call.
  void synchronize();

  /// Simulated time at which all enqueued work will be done. Seconds.
  double time() const;
  /// The stream is busy for `seconds` more from its time, or from `earliest` where that is later.
  void charge(double seconds, double earliest = 0);

 private:
  friend class Runner;
  // The number of the last work pushed until then, 0 where there is none; and when the oldest that
  // is left was pushed.
  uint64_t last_pushed_until(std::chrono::steady_clock::time_point time,
                             std::optional<std::chrono::steady_clock::time_point>& oldest) const;

  const c10::Stream stream_;
  mutable std::mutex mutex_;  // of the members below
  std::deque<std::pair<Work, std::chrono::steady_clock::time_point>> work_;
  double time_ = 0;
  bool noticed_ = false;  // the runner knows of it; under the runner's lock
  std::condition_variable changed_;
  bool running_ = false;  // someone runs work
  std::exception_ptr error_;
  std::atomic<uint64_t> pushed_ = 0;
  std::atomic<uint64_t> done_ = 0;
};

/// The queue of a stream; throws LibTorch's error for one that is not of a simulated device that
/// exists.
Queue& queue_of(c10::Stream stream);
/// The current one of this thread on the device.
Queue& current_queue(c10::Device device);
c10::Stream current_stream(c10::Device device);
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream pool_stream(c10::Device device);
c10::Stream new_stream(c10::Device device);
/// Runs everything enqueued on the device.
void drain_device(c10::DeviceIndex device);
bool device_idle(c10::DeviceIndex device);
/// As drain_device, with the errors of work.
void synchronize_device(c10::DeviceIndex device);
/// Simulated time of all streams of the device, the latest.
double latest_time(c10::DeviceIndex device);

/// The device's index, the current one where it names none.
c10::DeviceIndex current_device();
c10::DeviceIndex exchange_device(c10::DeviceIndex device);

}  // namespace bellows::sim
