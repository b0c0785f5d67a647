// One piece of work at a time, done behind the caller's back: writing a checkpoint while training
// goes on.
#pragma once

#include <functional>
#include <memory>

namespace bellows {

/// Runs tasks in one thread of its own, at most one at a time. The first error of a task is kept
/// until the owner's next call of `start`, `wait` or `rethrow`, which throws it, once. Members may
/// be called by one thread at a time; `busy` by any. A task that waits for itself gets a
/// ValueError.
class BackgroundTask {
 public:
  /// Starts the thread. Throws EnvironmentError where the system gives none.
  BackgroundTask();
  /// Waits for the task at hand. An error that nobody was told is logged.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  /// Waits for the task before, throws its error, if any (then nothing is started); else hands
  /// `task` to the thread and returns.
  void start(std::function<void()> task);
  /// Waits until nothing runs; throws the error, if any.
  void wait();
  /// Throws the error of a task that has ended, if any; waits for nothing.
  void rethrow();
  /// Waits until nothing runs; keeps the error.
  void settle() const;
  /// Whether a task runs.
  bool busy() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows
