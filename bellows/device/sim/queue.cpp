#include "bellows/device/sim/queue.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <pthread.h>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "bellows/device/sim/state.h"

namespace bellows::sim {

using Clock = std::chrono::steady_clock;

// Runs, in the background, work that nobody has waited for.
class Runner {
 public:
  static Runner& get() { return *instance(); }

  void notice(Queue* queue) {
    const std::lock_guard lock(mutex_);
    if (stop_ || std::exchange(queue->noticed_, true)) return;
    waiting_.push_back(queue);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    if (Clock::now() + delay() < next_look_) changed_.notify_one();
  }

 private:
  // Never destroyed: work may be pushed as late as at exit. A forked child, which has no thread of
  // it, gets its own.
  static std::atomic<Runner*>& instance() {
    static std::atomic<Runner*> current = [] {
      std::atexit([] { get().stop(); });
      ::pthread_atfork(nullptr, nullptr, [] { instance() = new Runner; });
      return new Runner;
    }();
    return current;
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

  static Clock::duration delay() { return std::chrono::milliseconds(state().copy_delay_ms); }

  void run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      // Until when nothing is due: looked at again earlier where what is noticed meanwhile is.
      next_look_ = Clock::time_point::max();
      Queue* due_queue = nullptr;
      uint64_t due = 0;
      for (size_t i = waiting_.size(); i > 0 && due == 0; --i) {
        Queue* queue = waiting_.front();
        waiting_.pop_front();
        std::optional<Clock::time_point> oldest;
        due = queue->last_pushed_until(Clock::now() - delay(), oldest);
        if (due > 0) due_queue = queue;
        if (oldest) {
          waiting_.push_back(queue);
          next_look_ = std::min(next_look_, *oldest + delay());
        } else {
          queue->noticed_ = false;
        }
      }
      if (due > 0) {
        next_look_ = Clock::time_point::min();
        lock.unlock();
        due_queue->run_until(due);
        lock.lock();
      } else if (waiting_.empty()) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(lock, next_look_);
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queue*> waiting_;                              // each once
  Clock::time_point next_look_ = Clock::time_point::min();  // when the thread looks by itself
  bool stop_ = false;
  std::thread thread_;
};

uint64_t Queue::push(Work work) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    work_.emplace_back(std::move(work), Clock::now());
    number = ++pushed_;
  }
  Runner::get().notice(this);
  return number;
}

// No lock is held while work runs: it may wait for another queue, whose work may wait for this
// one's earlier work.
void Queue::run_until(uint64_t number) {
  if (done(number)) return;
  std::unique_lock lock(mutex_);
  while (!done(number)) {
    if (running_) {
      changed_.wait(lock);
      continue;
    }
    running_ = true;
    Work work = std::move(work_.front().first);
    work_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    work = nullptr;  // what it holds goes before anyone goes on
    lock.lock();
    if (!error_) error_ = error;
    running_ = false;
    done_.fetch_add(1, std::memory_order_acq_rel);
    changed_.notify_all();
  }
}

void Queue::synchronize() {
  drain();
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = std::exchange(error_, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

uint64_t Queue::last_pushed_until(Clock::time_point time,
                                  std::optional<Clock::time_point>& oldest) const {
  const std::lock_guard lock(mutex_);
  uint64_t number = pushed_ - work_.size();
  const uint64_t before = number;
  for (const auto& [work, pushed] : work_) {
    if (!oldest) oldest = pushed;
    if (pushed > time) break;
    ++number;
  }
  return number == before ? 0 : number;
}

double Queue::time() const {
  const std::lock_guard lock(mutex_);
  return time_;
}

void Queue::charge(double seconds, double earliest) {
  const std::lock_guard lock(mutex_);
  time_ = std::max(time_, earliest) + seconds;
}

namespace {

constexpr c10::StreamId kPoolStreams = 32;

// The queues of one device, by stream: 0 is the default one, then the pool, then those made anew.
struct DeviceQueues {
  std::mutex mutex;
  std::vector<std::unique_ptr<Queue>> queues;
  c10::StreamId next_of_pool = 0;
};

DeviceQueues& queues_of(c10::DeviceIndex device) {
  static auto* all = new std::array<DeviceQueues, kMaxDevices>;  // used until the process ends
  TORCH_CHECK(device >= 0 && device < state().devices, "sim:", int{device}, ": there are ",
              state().devices.load(), " simulated devices");
  return (*all)[static_cast<size_t>(device)];
}

Queue& queue_at(c10::DeviceIndex device, c10::StreamId id) {
  DeviceQueues& own = queues_of(device);
  const std::lock_guard lock(own.mutex);
  const auto at = static_cast<size_t>(id);
  if (at >= own.queues.size()) own.queues.resize(at + 1);
  if (!own.queues[at]) {
    own.queues[at] =
        std::make_unique<Queue>(c10::Stream(c10::Stream::UNSAFE, device_at(device), id));
  }
  return *own.queues[at];
}

std::vector<Queue*> all_queues(c10::DeviceIndex device) {
  DeviceQueues& own = queues_of(device);
  const std::lock_guard lock(own.mutex);
  std::vector<Queue*> out;
  for (const auto& queue : own.queues)
    if (queue) out.push_back(queue.get());
  return out;
}

struct Current {
  c10::DeviceIndex device = 0;
  std::array<Queue*, kMaxDevices> queues{};
};
thread_local Current current;

}  // namespace

Queue& queue_of(c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == kType, "expected a stream of a simulated device");
  return queue_at(stream.device_index(), stream.id());
}

Queue& current_queue(c10::Device device) {
  const c10::DeviceIndex index = device.has_index() ? device.index() : current.device;
  if (index < 0 || index >= kMaxDevices) return queue_at(index, 0);  // throws
  Queue*& queue = current.queues[static_cast<size_t>(index)];
  if (queue == nullptr) queue = &queue_at(index, 0);
  return *queue;
}

c10::Stream current_stream(c10::Device device) {
  return current_queue(device).stream();
}

c10::Stream exchange_stream(c10::Stream stream) {
  Queue& next = queue_of(stream);
  const c10::Stream previous = current_stream(stream.device());
  current.queues[static_cast<size_t>(stream.device_index())] = &next;
  return previous;
}

c10::Stream pool_stream(c10::Device device) {
  const c10::DeviceIndex index = device.has_index() ? device.index() : current.device;
  DeviceQueues& own = queues_of(index);
  c10::StreamId id = 0;
  {
    const std::lock_guard lock(own.mutex);
    id = 1 + own.next_of_pool++ % kPoolStreams;
  }
  return queue_at(index, id).stream();
}

c10::Stream new_stream(c10::Device device) {
  const c10::DeviceIndex index = device.has_index() ? device.index() : current.device;
  DeviceQueues& own = queues_of(index);
  c10::StreamId id = 0;
  {
    const std::lock_guard lock(own.mutex);
    id = std::max<c10::StreamId>(kPoolStreams + 1, static_cast<c10::StreamId>(own.queues.size()));
    own.queues.resize(static_cast<size_t>(id) + 1);
  }
  return queue_at(index, id).stream();
}

void drain_device(c10::DeviceIndex device) {
  for (Queue* queue : all_queues(device)) queue->drain();
}

bool device_idle(c10::DeviceIndex device) {
  return std::ranges::all_of(all_queues(device), &Queue::idle);
}

void synchronize_device(c10::DeviceIndex device) {
  drain_device(device);
  for (Queue* queue : all_queues(device)) queue->synchronize();
}

double latest_time(c10::DeviceIndex device) {
  double latest = 0;
  for (const Queue* queue : all_queues(device)) latest = std::max(latest, queue->time());
  return latest;
}

c10::DeviceIndex current_device() {
  return current.device;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  queues_of(device);  // throws where it is not there
  return std::exchange(current.device, device);
}

}  // namespace bellows::sim
