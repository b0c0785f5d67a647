// The queue behind a stream, without tensors: also under ThreadSanitizer.
#include "bellows/device/sim/queue.h"

#include <atomic>
#include <deque>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

c10::Stream stream_number(int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(0), id);
}

class QueueTest : public ::testing::Test {
 protected:
  // Queues live as long as the process.
  Queue& make() {
    static auto* all = new std::deque<Queue>;
    return all->emplace_back(stream_number(next_++));
  }
  static void delay(std::chrono::milliseconds time) { state().copy_delay_ms = time.count(); }

 private:
  int64_t next_ = 100;
};

TEST_F(QueueTest, RunsInOrderWhenWaitedFor) {
  delay(std::chrono::hours(1));
  Queue& queue = make();
  std::vector<int> ran;
  for (int i = 0; i < 5; ++i) queue.push([&, i] { ran.push_back(i); });
  EXPECT_TRUE(ran.empty());
  EXPECT_FALSE(queue.idle());
  queue.run_until(3);
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(queue.done(3));
  EXPECT_FALSE(queue.done(4));
  queue.drain();
  EXPECT_EQ(ran.size(), 5u);
  EXPECT_TRUE(queue.idle());
}

TEST_F(QueueTest, WhatNobodyWaitsForRunsAfterTheDelay) {
  delay(std::chrono::milliseconds(1));
  Queue& queue = make();
  std::atomic<bool> ran = false;
  queue.push([&] { ran = true; });
  while (!queue.idle()) std::this_thread::yield();
  EXPECT_TRUE(ran);
}

// The thread in the background sleeps for what is due in an hour when the next is pushed.
TEST_F(QueueTest, WhatIsDueSoonerDoesNotWaitForWhatIsDueLater) {
  delay(std::chrono::hours(1));
  Queue& later = make();
  later.push([] {});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  delay(std::chrono::milliseconds(1));
  Queue& sooner = make();
  sooner.push([] {});
  while (!sooner.idle()) std::this_thread::yield();
  later.drain();
}

TEST_F(QueueTest, OnlyWhatIsDueRunsInTheBackground) {
  delay(std::chrono::milliseconds(200));
  Queue& queue = make();
  const uint64_t first = queue.push([] {});
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  const auto pushed = std::chrono::steady_clock::now();
  std::atomic<std::chrono::steady_clock::time_point> ran{pushed};
  const uint64_t second = queue.push([&] { ran = std::chrono::steady_clock::now(); });
  while (!queue.done(first)) std::this_thread::yield();
  while (!queue.done(second)) std::this_thread::yield();
  EXPECT_GE(ran.load() - pushed, std::chrono::milliseconds(200));
}

TEST_F(QueueTest, AnErrorComesOutOnceAndTheQueueGoesOn) {
  delay(std::chrono::hours(1));
  Queue& queue = make();
  bool ran = false;
  queue.push([] { throw std::runtime_error("the first"); });
  queue.push([] { throw std::runtime_error("the second"); });
  queue.push([&] { ran = true; });
  queue.drain();
  EXPECT_TRUE(ran);
  try {
    queue.synchronize();
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the first");
  }
  EXPECT_NO_THROW(queue.synchronize());
}

TEST_F(QueueTest, ManyThreadsMayPushAndWait) {
  delay(std::chrono::milliseconds(0));
  Queue& queue = make();
  int64_t sum = 0;  // guarded by the queue's order
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) queue.run_until(queue.push([&] { ++sum; }));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum, 800);
}

TEST_F(QueueTest, QueuesThatWaitForEachOtherByTurnsDoNotStandStill) {
  for (const int milliseconds : {0, 1000}) {
    delay(std::chrono::milliseconds(milliseconds));
    for (int round = 0; round < 30; ++round) {
      Queue& a = make();
      Queue& b = make();
      int64_t count = 0;  // each change is ordered by the waits
      for (int i = 0; i < 20; ++i) {
        Queue& own = i % 2 == 0 ? a : b;
        Queue& other = i % 2 == 0 ? b : a;
        const uint64_t before = other.last();
        own.push([&other, before] { other.run_until(before); });
        own.push([&count] { ++count; });
      }
      std::vector<std::thread> threads;
      for (Queue* queue : {&a, &b, &a, &b}) threads.emplace_back([queue] { queue->drain(); });
      for (auto& thread : threads) thread.join();
      EXPECT_EQ(count, 20);
    }
  }
}

TEST_F(QueueTest, SimulatedTimeAddsUpFromTheLaterOfBothSides) {
  Queue& queue = make();
  queue.charge(1);
  queue.charge(2, 0.5);
  EXPECT_EQ(queue.time(), 3);
  queue.charge(1, 10);
  EXPECT_EQ(queue.time(), 11);
}

}  // namespace
}  // namespace bellows::sim
