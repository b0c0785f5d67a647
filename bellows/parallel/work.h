// What stands behind a Work. Internal.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "bellows/parallel/group.h"
#include "bellows/parallel/transport.h"

namespace bellows::parallel {

class Work::State {
 public:
  using Finish = std::function<void()>;
  /// `finish` brings what was received into the user's tensors; it runs before any wait() returns,
  /// in the thread that completes the work.
  State(std::vector<at::Tensor> tensors, Finish finish)
      : tensors_(std::move(tensors)), finish_(std::move(finish)) {}

  /// Once: later calls change nothing.
  void complete(const std::exception_ptr& error);
  void wait();
  bool done() const;
  c10::intrusive_ptr<c10::ivalue::Future> future();

  /// What one wait() has to do in its own thread, before the outcome is known: of send and recv.
  /// `abort` is called by complete() with an error: it lets go whoever is in `waiter`.
  void wait_by(std::function<void()> waiter, std::function<void()> abort);

 private:
  void complete_future();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  enum class Stage { pending, finishing, done } stage_ = Stage::pending;
  std::exception_ptr error_;
  std::vector<at::Tensor> tensors_;
  Finish finish_;
  std::function<void()> waiter_, abort_;
  struct Promise;  // the future, whose header is heavy
  std::shared_ptr<Promise> promise_;
};

}  // namespace bellows::parallel
