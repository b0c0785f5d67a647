#include "bellows/core/background_task.h"

#include <atomic>
#include <gmock/gmock.h>
#include <latch>
#include <thread>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/support/message_of.h"

namespace bellows {
namespace {

using bellows::testing::message_of;
using ::testing::HasSubstr;

TEST(BackgroundTaskTest, TaskThatWaitsForItselfIsAnErrorNotAHang) {
  BackgroundTask background;
  background.start([&] { background.wait(); });
  EXPECT_THAT(message_of<Error>([&] { background.wait(); }), HasSubstr("cannot wait for itself"));
  background.start([&] { background.start([] {}); });
  EXPECT_THAT(message_of<Error>([&] { background.wait(); }), HasSubstr("cannot wait for itself"));
  background.start([] {});
  background.wait();
}

TEST(BackgroundTaskTest, RunsInAnotherThreadWhileTheCallerGoesOn) {
  BackgroundTask background;
  std::latch go(1);
  std::thread::id where;
  background.start([&] {
    go.wait();
    where = std::this_thread::get_id();
  });
  EXPECT_TRUE(background.busy());
  go.count_down();
  background.wait();
  EXPECT_FALSE(background.busy());
  EXPECT_NE(where, std::this_thread::get_id());
  EXPECT_NE(where, std::thread::id());
}

TEST(BackgroundTaskTest, NextTaskWaitsForTheOneBefore) {
  BackgroundTask background;
  std::atomic<int> running = 0, most = 0, done = 0;
  for (int i = 0; i < 50; ++i) {
    background.start([&] {
      most = std::max<int>(most, ++running);
      std::this_thread::yield();
      --running;
      ++done;
    });
  }
  background.wait();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(done, 50);
}

TEST(BackgroundTaskTest, ErrorReachesTheNextCallOnceAndStartsNothing) {
  BackgroundTask background;
  bool ran = false;
  const auto fail = [] { throw ValueError("disk full"); };
  background.start(fail);
  EXPECT_EQ(message_of<Error>([&] { background.start([&] { ran = true; }); }), "disk full");
  background.wait();
  EXPECT_FALSE(ran);
  background.start(fail);
  EXPECT_EQ(message_of<Error>([&] { background.wait(); }), "disk full");
  background.wait();
  background.start(fail);
  while (background.busy()) std::this_thread::yield();
  EXPECT_EQ(message_of<Error>([&] { background.rethrow(); }), "disk full");
  background.rethrow();
  background.start([&] { ran = true; });
  background.wait();
  EXPECT_TRUE(ran);
}

TEST(BackgroundTaskTest, EndWaitsForTheTask) {
  bool done = false;
  {
    BackgroundTask background;
    background.start([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      done = true;
    });
  }
  EXPECT_TRUE(done);
}

TEST(BackgroundTaskTest, ErrorThatNobodyWasToldIsLogged) {
  ::testing::internal::CaptureStderr();
  {
    BackgroundTask background;
    background.start([] { throw ValueError("disk full"); });
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("disk full"));
}

}  // namespace
}  // namespace bellows
