#include "bellows/core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows {
namespace {

// More slices than threads, so that a slow slice does not leave the others idle.
constexpr int64_t kSlicesPerThread = 4;

// One parallel_for. Helpers in the queue share it; one that starts late finds no slice left and
// touches nothing but the counter, so `body` need not outlive the call.
class SlicedLoop {
 public:
  SlicedLoop(int64_t count, int64_t length, const std::function<void(int64_t, int64_t)>& body)
      : count_(count), length_(length), slices_(1 + (count - 1) / length), body_(body) {}

  int64_t slices() const { return slices_; }

  // Runs slices until none is left to start.
  void work() {
    for (int64_t slice = next_++; slice < slices_; slice = next_++) {
      std::exception_ptr error;
      try {
        const int64_t begin = slice * length_;
        body_(begin, begin + std::min(length_, count_ - begin));
      } catch (...) {
        error = std::current_exception();
      }
      finish(slice, std::move(error));
    }
  }

  void wait_and_rethrow() {
    std::unique_lock lock(mutex_);
    all_done_.wait(lock, [this] { return done_ == slices_; });
    if (first_error_) std::rethrow_exception(std::exchange(first_error_, nullptr));
  }

 private:
  void finish(int64_t slice, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error && slice < first_failed_) {
      first_failed_ = slice;
      first_error_ = std::move(error);
    }
    if (++done_ == slices_) all_done_.notify_all();
  }

  const int64_t count_, length_, slices_;
  const std::function<void(int64_t, int64_t)>& body_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
  int64_t done_ = 0;
  int64_t first_failed_ = std::numeric_limits<int64_t>::max();
  std::exception_ptr first_error_;
};

}  // namespace

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> queue;
  bool stopping = false;
  std::vector<std::thread> threads;

  ~State() { drain(); }

  // Returns when the queue is empty and the threads have ended.
  void drain() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    for (std::thread& thread : threads) {
      if (thread.joinable()) thread.join();
    }
  }

  void run() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [this] { return stopping || !queue.empty(); });
        if (queue.empty()) return;
        task = std::move(queue.front());
        queue.pop_front();
      }
      task();
    }
  }
};

ThreadPool::ThreadPool(int threads) {
  if (threads < 0) {
    throw ValueError(concat("thread pool: got ", threads, " threads, expected 0 or more"));
  }
  state_ = std::make_unique<State>();
  state_->threads.reserve(threads);
  try {
    for (int i = 0; i < threads; ++i)
      state_->threads.emplace_back([s = state_.get()] { s->run(); });
  } catch (const std::system_error& error) {
    throw EnvironmentError(concat("thread pool: could start only ", state_->threads.size(), " of ",
                                  threads, " threads: ", error.code().message(),
                                  "; ask for fewer, or raise the limit (ulimit -u)"));
  }
}

// Tasks that still run may submit others, so the state must be whole until they have ended.
ThreadPool::~ThreadPool() {
  state_->drain();
}

int ThreadPool::size() const {
  return static_cast<int>(state_->threads.size());
}

void ThreadPool::enqueue(std::function<void()> task) {
  if (size() == 0) return task();
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(task));
  }
  state_->wake.notify_one();
}

void ThreadPool::parallel_for(int64_t count, int64_t grain,
                              const std::function<void(int64_t, int64_t)>& body) {
  if (count < 0 || grain < 1) {
    throw ValueError(concat("parallel_for: got count ", count, " and grain ", grain,
                            ", expected count >= 0 and grain >= 1"));
  }
  if (count == 0) return;
  const int64_t wanted_slices = (size() + 1) * kSlicesPerThread;
  const int64_t length = std::max(grain, 1 + (count - 1) / wanted_slices);
  const auto loop = std::make_shared<SlicedLoop>(count, length, body);
  const int64_t helpers = std::min<int64_t>(size(), loop->slices() - 1);
  for (int64_t i = 0; i < helpers; ++i) enqueue([loop] { loop->work(); });
  loop->work();
  loop->wait_and_rethrow();
}

}  // namespace bellows
