#include "bellows/device/stream.h"

#include <set>

#include <gtest/gtest.h>

#include "bellows/core/clock.h"
#include "bellows/core/error.h"

namespace bellows {
namespace {

const c10::Device kCpu(c10::kCPU);

struct HandClock : Clock {
  Duration time{};
  Duration now() const override { return time; }
};

TEST(StreamTest, TheCpuHasOneStreamWhoseWorkIsAlwaysDone) {
  const Stream stream = Stream::current(kCpu);
  EXPECT_EQ(stream, Stream::default_of(kCpu));
  EXPECT_EQ(stream, Stream::from_pool(kCpu, true));
  EXPECT_TRUE(stream.device().is_cpu());
  EXPECT_EQ(stream.native_handle(), nullptr);
  EXPECT_TRUE(stream.query());
  stream.synchronize();
}

TEST(StreamTest, MetaHasNoStreamsToWaitForEither) {
  const Stream stream = Stream::current(c10::Device(c10::kMeta));
  EXPECT_TRUE(stream.query());
  Event event{c10::Device(c10::kMeta)};
  event.record(stream);
  EXPECT_TRUE(event.query());
}

TEST(EventTest, OnTheCpuARecordedEventIsReached) {
  Event event(kCpu);
  EXPECT_FALSE(event.recorded());
  EXPECT_TRUE(event.query());
  const Stream stream = Stream::current(kCpu);
  event.record(stream);
  EXPECT_TRUE(event.recorded());
  EXPECT_TRUE(event.query());
  stream.wait(event);
  event.synchronize();
}

TEST(EventTest, TimeBetweenCpuEventsIsThatOfTheClock) {
  HandClock clock;
  const ScopedClock scoped(clock);
  Event start(kCpu, /*timing=*/true);
  Event end(kCpu, /*timing=*/true);
  start.record(Stream::current(kCpu));
  clock.time += std::chrono::milliseconds(250);
  end.record(Stream::current(kCpu));
  EXPECT_DOUBLE_EQ(start.elapsed_until(end).count(), 250.0);
}

TEST(EventTest, TimeNeedsTimingAndTwoRecordedEventsOfOneDevice) {
  Event plain(kCpu);
  Event timed(kCpu, true);
  Event unrecorded(kCpu, true);
  Event meta(c10::Device(c10::kMeta), true);
  for (Event* event : {&plain, &timed}) event->record(Stream::current(kCpu));
  EXPECT_THROW(timed.elapsed_until(plain), ValueError);
  EXPECT_THROW(plain.elapsed_until(timed), ValueError);
  EXPECT_THROW(timed.elapsed_until(unrecorded), ValueError);
  EXPECT_THROW(timed.elapsed_until(meta), ValueError);
}

TEST(EventTest, AStreamOfAnotherDeviceIsRefused) {
  Event event(kCpu);
  EXPECT_THROW(event.record(Stream::current(c10::Device(c10::kMeta))), ValueError);
  EXPECT_FALSE(event.recorded());
}

TEST(GuardTest, OnTheCpuGuardsChangeNothing) {
  const DeviceGuard device(kCpu);
  const StreamGuard stream(Stream::from_pool(kCpu));
  EXPECT_EQ(Stream::current(kCpu), Stream::default_of(kCpu));
}

TEST(GuardTest, ADeviceWhoseKindIsNotLoadedIsAnEnvironmentError) {
  const c10::Device xpu(c10::kXPU, 0);  // never part of the builds used here
  EXPECT_THROW(DeviceGuard{xpu}, EnvironmentError);
  EXPECT_THROW(Event{xpu}, EnvironmentError);
  EXPECT_THROW(Stream::current(xpu), EnvironmentError);
}

}  // namespace
}  // namespace bellows
