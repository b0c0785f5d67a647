// A store whose calls end in time, whatever has become of the process that serves it. Internal.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "bellows/core/clock.h"
#include "bellows/parallel/store.h"

namespace bellows::parallel {

/// Calls are made one after the other by a thread of its own. Any thread.
class QuickStore {
 public:
  using Ask = std::function<std::string(Store&)>;

  /// `store`: nobody else's connection.
  explicit QuickStore(std::shared_ptr<Store> store);
  /// Waits for no call: a thread that hangs in one is let go.
  ~QuickStore();
  QuickStore(const QuickStore&) = delete;
  QuickStore& operator=(const QuickStore&) = delete;

  /// Nothing where there was no answer within `limit`, or the connection is gone.
  std::optional<std::string> ask(Ask question, std::chrono::milliseconds limit);
  /// Without waiting for it.
  void tell(std::function<void(Store&)> what);
  /// Whether the connection is gone for good.
  bool gone() const;
  /// For how long the call under way has had no answer; 0 without one.
  Clock::Duration silent_for() const;

 private:
  struct Shared;
  static void serve(const std::shared_ptr<Shared>& shared);
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace bellows::parallel
