#include "bellows/core/clock.h"

#include <ctime>
#include <thread>

#include <gtest/gtest.h>

namespace bellows {
namespace {

using namespace std::chrono_literals;

class HandClock : public Clock {
 public:
  Duration now() const override { return time; }
  Duration time{0};
};

TEST(ClockTest, RealClockFollowsSleepAndNeverGoesBack) {
  const auto start = monotonic_clock().now();
  std::this_thread::sleep_for(2ms);
  const auto end = monotonic_clock().now();
  EXPECT_GE(end - start, 2ms);
  EXPECT_GE(seconds_since(start), 0.002);
}

TEST(ClockTest, ScopedClockReplacesTheClockForItsLifetime) {
  HandClock hand;
  {
    const ScopedClock scope(hand);
    EXPECT_EQ(&monotonic_clock(), &hand);
    hand.time = 1500ms;
    EXPECT_DOUBLE_EQ(seconds_since(0ns), 1.5);
  }
  EXPECT_NE(&monotonic_clock(), &hand);
}

TEST(ClockTest, NestedScopesRestoreThePreviousClock) {
  HandClock outer, inner;
  const ScopedClock outer_scope(outer);
  { const ScopedClock inner_scope(inner); }
  EXPECT_EQ(&monotonic_clock(), &outer);
}

TEST(ClockTest, WallClockCountsSecondsSince1970) {
  const auto before = static_cast<double>(std::time(nullptr));
  EXPECT_GE(unix_seconds(), before);
  EXPECT_LT(unix_seconds(), before + 60);
}

}  // namespace
}  // namespace bellows
