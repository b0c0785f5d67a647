#include "bellows/core/background_task.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"

namespace bellows {

struct BackgroundTask::State {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> task;  // empty: none
  bool stopping = false;
  std::exception_ptr error;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return task || stopping; });
      if (!task) return;
      const std::function<void()> current = task;
      lock.unlock();
      std::exception_ptr failure;
      try {
        current();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      task = nullptr;
      if (failure) error = failure;
      changed.notify_all();
    }
  }

  void wait_until_idle(std::unique_lock<std::mutex>& lock) {
    if (task && std::this_thread::get_id() == thread.get_id())
      throw ValueError("work in the background cannot wait for itself");
    changed.wait(lock, [this] { return !task; });
  }

  // Without the lock: what catches it may take its time.
  void throw_error(std::unique_lock<std::mutex>& lock) {
    if (std::exception_ptr failure = std::exchange(error, nullptr)) {
      lock.unlock();
      std::rethrow_exception(std::move(failure));
    }
  }
};

BackgroundTask::BackgroundTask() : state_(std::make_unique<State>()) {
  try {
    state_->thread = std::thread([state = state_.get()] { state->run(); });
  } catch (const std::system_error& error) {
    throw EnvironmentError(concat("a thread for work in the background could not be started: ",
                                  error.code().message(), "; raise the limit (ulimit -u)"));
  }
}

BackgroundTask::~BackgroundTask() {
  {
    std::unique_lock lock(state_->mutex);
    state_->wait_until_idle(lock);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
  try {
    rethrow();
  } catch (const std::exception& error) {
    log::error(concat("work in the background failed: ", error.what()));
  } catch (...) {
    log::error("work in the background failed");
  }
}

void BackgroundTask::start(std::function<void()> task) {
  std::unique_lock lock(state_->mutex);
  state_->wait_until_idle(lock);
  state_->throw_error(lock);
  state_->task = std::move(task);
  lock.unlock();
  state_->changed.notify_all();
}

void BackgroundTask::wait() {
  std::unique_lock lock(state_->mutex);
  state_->wait_until_idle(lock);
  state_->throw_error(lock);
}

void BackgroundTask::rethrow() {
  std::unique_lock lock(state_->mutex);
  state_->throw_error(lock);
}

void BackgroundTask::settle() const {
  std::unique_lock lock(state_->mutex);
  state_->wait_until_idle(lock);
}

bool BackgroundTask::busy() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<bool>(state_->task);
}

}  // namespace bellows
