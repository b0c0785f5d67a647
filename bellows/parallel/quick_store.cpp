#include "bellows/parallel/quick_store.h"

#include <exception>
#include <utility>

#include "bellows/core/log.h"
#include "bellows/core/text.h"

namespace bellows::parallel {
namespace {
struct Task {
  QuickStore::Ask question;
  std::optional<std::string> answer;
  bool ended = false;
};
}  // namespace

struct QuickStore::Shared {
  std::shared_ptr<Store> store;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Task>> tasks;
  bool busy = false, gone = false, stop = false;
  Clock::Duration since{};
};

QuickStore::QuickStore(std::shared_ptr<Store> store) : shared_(std::make_shared<Shared>()) {
  shared_->store = std::move(store);
  thread_ = std::thread([shared = shared_] { serve(shared); });
}

QuickStore::~QuickStore() {
  bool hangs = false;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->stop = true;
    shared_->tasks.clear();
    shared_->changed.notify_all();
    hangs = !shared_->changed.wait_for(lock, std::chrono::milliseconds(50),
                                       [&] { return !shared_->busy; });
  }
  if (hangs) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void QuickStore::serve(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock, [&] { return shared->stop || !shared->tasks.empty(); });
    if (shared->stop) return;
    const auto task = std::move(shared->tasks.front());
    shared->tasks.pop_front();
    shared->busy = true;
    shared->since = monotonic_clock().now();
    lock.unlock();
    bool failed = false;
    std::optional<std::string> answer;
    try {
      failed = !shared->store->served();
      if (!failed) answer = task->question(*shared->store);
    } catch (const std::exception& error) {
      failed = true;
      log::debug(concat("the store of the ranks cannot be reached: ", error.what()));
    }
    lock.lock();
    task->answer = std::move(answer);
    task->ended = true;
    shared->gone = shared->gone || failed;
    shared->busy = false;
    shared->changed.notify_all();
  }
}

std::optional<std::string> QuickStore::ask(Ask question, std::chrono::milliseconds limit) {
  const auto task = std::make_shared<Task>();
  task->question = std::move(question);
  std::unique_lock lock(shared_->mutex);
  if (shared_->gone || shared_->stop) return std::nullopt;
  shared_->tasks.push_back(task);
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, limit, [&] { return task->ended || shared_->gone; });
  if (!task->ended) std::erase(shared_->tasks, task);
  return task->answer;
}

void QuickStore::tell(std::function<void(Store&)> what) {
  const auto task = std::make_shared<Task>();
  task->question = [what = std::move(what)](Store& store) {
    what(store);
    return std::string();
  };
  const std::lock_guard lock(shared_->mutex);
  if (shared_->gone || shared_->stop) return;
  shared_->tasks.push_back(task);
  shared_->changed.notify_all();
}

bool QuickStore::gone() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->gone;
}

Clock::Duration QuickStore::silent_for() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->busy ? monotonic_clock().now() - shared_->since : Clock::Duration{};
}

}  // namespace bellows::parallel
