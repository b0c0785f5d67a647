#include "bellows/parallel/work.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "bellows/data/single_thread.h"
#include "bellows/device/stream.h"

namespace bellows::parallel {

struct Work::State::Promise {
  explicit Promise(std::vector<c10::Device> devices)
      : future(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(),
                                                        std::move(devices))) {}
  const c10::intrusive_ptr<c10::ivalue::Future> future;
  std::atomic<bool> kept{false};  // future() and complete() may both see to it
};

namespace {

/// LibTorch's futures want to know them beforehand.
std::vector<c10::Device> cuda_devices(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const auto& tensor : tensors) {
    if (tensor.is_cuda() && std::ranges::find(devices, tensor.device()) == devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return devices;
}

}  // namespace

void Work::wait() const {
  if (state_) state_->wait();
}

bool Work::done() const {
  return !state_ || state_->done();
}

c10::intrusive_ptr<c10::ivalue::Future> Work::future() const {
  if (state_) return state_->future();
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
  future->markCompleted(c10::IValue(std::vector<at::Tensor>{}));
  return future;
}

void Work::State::complete(const std::exception_ptr& error) {
  {
    const std::lock_guard lock(mutex_);
    if (stage_ != Stage::pending) return;
    stage_ = Stage::finishing;
  }
  std::exception_ptr outcome = error;
  if (!outcome && finish_) {
    const at::NoGradGuard no_grad;
    const data::SingleThreadOfLibtorch single;  // it runs beside training, in a thread of c10d
    try {
      finish_();
      // What it enqueued in this thread must be there for a caller with a stream of its own.
      for (const auto& device : cuda_devices(tensors_)) Stream::current(device).synchronize();
    } catch (...) {
      outcome = std::current_exception();
    }
  }
  std::function<void()> abort;
  {
    const std::lock_guard lock(mutex_);
    error_ = outcome;
    stage_ = Stage::done;
    finish_ = {};
    abort.swap(abort_);
    changed_.notify_all();
  }
  if (outcome && abort) abort();
  complete_future();
}

void Work::State::wait_by(std::function<void()> waiter, std::function<void()> abort) {
  const std::lock_guard lock(mutex_);
  waiter_ = std::move(waiter);
  if (stage_ != Stage::done) abort_ = std::move(abort);
}

void Work::State::complete_future() {
  std::shared_ptr<Promise> promise;
  {
    const std::lock_guard lock(mutex_);
    promise = promise_;
  }
  if (!promise || promise->kept.exchange(true)) return;
  if (error_) {
    promise->future->setError(error_);
  } else {
    promise->future->markCompleted(c10::IValue(tensors_));
  }
}

void Work::State::wait() {
  std::unique_lock lock(mutex_);
  if (waiter_ && stage_ != Stage::done) {
    const auto waiter = std::exchange(waiter_, nullptr);
    lock.unlock();
    waiter();
    lock.lock();
  }
  changed_.wait(lock, [&] { return stage_ == Stage::done; });
  if (error_) std::rethrow_exception(error_);
}

bool Work::State::done() const {
  const std::lock_guard lock(mutex_);
  return stage_ == Stage::done;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::State::future() {
  bool completed = false;
  {
    const std::lock_guard lock(mutex_);
    if (promise_) return promise_->future;
    promise_ = std::make_shared<Promise>(cuda_devices(tensors_));
    completed = stage_ == Stage::done;
  }
  if (completed) complete_future();
  return promise_->future;
}

}  // namespace bellows::parallel
