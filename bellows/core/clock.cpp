#include "bellows/core/clock.h"

#include <atomic>

namespace bellows {
namespace {

class SteadyClock : public Clock {
 public:
  Duration now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
};

const SteadyClock kSteadyClock;
constinit std::atomic<const Clock*> clock_in_tests{nullptr};

}  // namespace

const Clock& monotonic_clock() {
  const Clock* clock = clock_in_tests.load(std::memory_order_acquire);
  return clock != nullptr ? *clock : kSteadyClock;
}

double seconds_since(Clock::Duration start) {
  return std::chrono::duration<double>(monotonic_clock().now() - start).count();
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

ScopedClock::ScopedClock(const Clock& clock) : previous_(clock_in_tests.exchange(&clock)) {}
ScopedClock::~ScopedClock() {
  clock_in_tests.store(previous_);
}

}  // namespace bellows
