// The monotonic clock, behind a seam so that tests can move time by hand.
#pragma once

#include <chrono>

namespace bellows {

/// Source of monotonic time. Thread-safe.
class Clock {
 public:
  using Duration = std::chrono::nanoseconds;
  virtual ~Clock() = default;
  /// Time since an arbitrary, fixed origin; never goes back, not moved by changes of the wall
  /// clock.
  virtual Duration now() const = 0;
};

/// The clock in force: std::chrono::steady_clock unless a ScopedClock is alive.
const Clock& monotonic_clock();

/// Seconds since `start`, on the clock in force.
double seconds_since(Clock::Duration start);

/// The wall clock, for stamps in files alone: seconds since 1970. It may jump.
double unix_seconds();

/// Replaces the clock for its own lifetime (tests). Not to be nested across threads.
class ScopedClock {
 public:
  explicit ScopedClock(const Clock& clock);
  ~ScopedClock();
  ScopedClock(const ScopedClock&) = delete;
  ScopedClock& operator=(const ScopedClock&) = delete;

 private:
  const Clock* previous_;
};

}  // namespace bellows
