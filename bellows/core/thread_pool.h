// A fixed set of threads for Bellows' own work (copying, decoding). Not for tensor arithmetic:
// LibTorch has its own threads. No OpenMP: see docs/engineering.md.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>

namespace bellows {

/// Threads start in the constructor and are joined in the destructor, after all submitted work has
/// run.
class ThreadPool {
 public:
  /// `threads` >= 0; with 0, work runs in the caller. Throws ValueError for a negative count.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  /// Queues one task; its result or exception arrives through the future. Any thread may call it. A
  /// task must not wait for the future of another task of the same pool: all threads may then be
  /// waiting.
  template <class Fn>
  auto submit(Fn fn) -> std::future<decltype(fn())> {
    auto task = std::make_shared<std::packaged_task<decltype(fn())()>>(std::move(fn));
    auto result = task->get_future();
    enqueue([task] { (*task)(); });
    return result;
  }

  /// Calls body(begin, end) on slices of [0, count), each at least `grain` long (except the last),
  /// and returns when all have run; the caller works too. Where slices throw, all still run, and
  /// then the exception of the lowest slice is rethrown. May be called from inside a task of this
  /// pool. Throws ValueError for a negative count or a grain below 1.
  void parallel_for(int64_t count, int64_t grain,
                    const std::function<void(int64_t, int64_t)>& body);

 private:
  struct State;
  void enqueue(std::function<void()> task);
  std::unique_ptr<State> state_;
};

}  // namespace bellows
