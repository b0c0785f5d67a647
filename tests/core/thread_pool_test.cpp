#include "bellows/core/thread_pool.h"

#include <atomic>
#include <barrier>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows {
namespace {

using Slices = std::set<std::pair<int64_t, int64_t>>;

Slices slices_of(ThreadPool& pool, int64_t count, int64_t grain) {
  Slices slices;
  std::mutex mutex;
  pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(slices.emplace(begin, end).second);
  });
  return slices;
}

// Slices follow one another from 0 to count, and all but the last are at least `grain` long.
void expect_cover(const Slices& slices, int64_t count, int64_t grain) {
  int64_t next = 0;
  for (const auto& [begin, end] : slices) {
    EXPECT_EQ(begin, next);
    EXPECT_LT(begin, end);
    if (end != count) {
      EXPECT_GE(end - begin, grain);
    }
    next = end;
  }
  EXPECT_EQ(next, count);
}

TEST(ThreadPoolTest, ResultArrivesThroughTheFuture) {
  ThreadPool pool(2);
  EXPECT_EQ(pool.size(), 2);
  EXPECT_EQ(pool.submit([] { return 7; }).get(), 7);
  // Neither task nor result need be copyable.
  auto moved = std::make_unique<int>(5);
  EXPECT_EQ(*pool.submit([held = std::move(moved)]() mutable { return std::move(held); }).get(), 5);
}

TEST(ThreadPoolTest, ExceptionArrivesThroughTheFutureAndTheThreadLives) {
  ThreadPool pool(1);
  auto failed = pool.submit([]() -> int { throw ValueError("no"); });
  EXPECT_THROW(failed.get(), ValueError);
  EXPECT_EQ(pool.submit([] { return 1; }).get(), 1);
}

TEST(ThreadPoolTest, TasksRunOnOtherThreadsAtTheSameTime) {
  ThreadPool pool(2);
  std::barrier both(2);
  const auto meet = [&both] {
    both.arrive_and_wait();
    return std::this_thread::get_id();
  };
  auto first = pool.submit(meet);
  auto second = pool.submit(meet);
  const auto first_id = first.get(), second_id = second.get();
  EXPECT_NE(first_id, second_id);
  EXPECT_NE(first_id, std::this_thread::get_id());
}

TEST(ThreadPoolTest, WithoutThreadsWorkRunsInTheCaller) {
  ThreadPool pool(0);
  EXPECT_EQ(pool.size(), 0);
  EXPECT_EQ(pool.submit([] { return std::this_thread::get_id(); }).get(),
            std::this_thread::get_id());
  pool.parallel_for(100, 1, [caller = std::this_thread::get_id()](int64_t, int64_t) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
  EXPECT_THROW(pool.submit([] { throw ValueError("no"); }).get(), ValueError);
}

TEST(ThreadPoolTest, NegativeNumberOfThreadsIsRefused) {
  try {
    ThreadPool pool(-1);
    FAIL() << "no error";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "thread pool: got -1 threads, expected 0 or more");
  }
}

TEST(ThreadPoolTest, DestructionRunsAllThatIsQueuedAndWhatThatSubmits) {
  std::atomic<int> done{0};
  {
    ThreadPool pool(2);
    for (int i = 0; i < 200; ++i) {
      pool.submit([&] {
        ++done;
        pool.submit([&] { ++done; });
      });
    }
  }
  EXPECT_EQ(done, 400);
}

TEST(ThreadPoolTest, ManyThreadsMaySubmit) {
  std::atomic<int> done{0};
  ThreadPool pool(2);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int j = 0; j < 100; ++j) pool.submit([&] { ++done; }).get();
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 400);
}

TEST(ThreadPoolTest, ParallelForCoversEveryIndexOnceInSlicesOfAtLeastTheGrain) {
  for (int threads : {0, 1, 3}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t grain : {1, 3, 64, 5000}) {
        SCOPED_TRACE(testing::Message() << threads << " threads, " << count << " by " << grain);
        expect_cover(slices_of(pool, count, grain), count, grain);
      }
    }
  }
}

TEST(ThreadPoolTest, ParallelForTakesTheLargestCountAndGrain) {
  ThreadPool pool(1);
  expect_cover(slices_of(pool, INT64_MAX, 1), INT64_MAX, 1);
  expect_cover(slices_of(pool, INT64_MAX, INT64_MAX), INT64_MAX, INT64_MAX);
}

TEST(ThreadPoolTest, ParallelForRefusesBadSizes) {
  ThreadPool pool(1);
  const auto body = [](int64_t, int64_t) { FAIL() << "must not run"; };
  EXPECT_THROW(pool.parallel_for(-1, 1, body), ValueError);
  try {
    pool.parallel_for(10, 0, body);
    FAIL() << "no error";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(),
                 "parallel_for: got count 10 and grain 0, expected count >= 0 and grain >= 1");
  }
}

TEST(ThreadPoolTest, ParallelForUsesTheThreadsToo) {
  ThreadPool pool(1);
  std::barrier both(2);
  std::atomic<int> met{0};
  // Two slices can only meet when two threads run them.
  pool.parallel_for(2, 1, [&](int64_t, int64_t) {
    both.arrive_and_wait();
    ++met;
  });
  EXPECT_EQ(met, 2);
}

TEST(ThreadPoolTest, ParallelForNeedsNoFreeThreadAndLateHelpersDoNothing) {
  ThreadPool pool(1);
  std::promise<void> release;
  auto blocker = pool.submit([gate = release.get_future()] { gate.wait(); });
  int64_t sum = 0;
  {
    const auto weights = std::make_unique<std::vector<int64_t>>(100, 1);
    pool.parallel_for(100, 10, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum += (*weights)[i];
    });
  }
  EXPECT_EQ(sum, 100);
  release.set_value();
  blocker.get();
  EXPECT_EQ(pool.submit([] { return 1; }).get(), 1);  // after the late helper
}

TEST(ThreadPoolTest, NestedParallelForDoesNotDeadlock) {
  for (int threads : {0, 1, 2, 4}) {
    ThreadPool pool(threads);
    std::atomic<int64_t> sum{0};
    const auto count = [&](int64_t begin, int64_t end) { sum += end - begin; };
    const auto inner = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) pool.parallel_for(8, 1, count);
    };
    pool.parallel_for(8, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) pool.parallel_for(8, 1, inner);
    });
    EXPECT_EQ(sum, 8 * 8 * 8);
    sum = 0;
    pool.submit([&] { pool.parallel_for(100, 1, count); }).get();
    EXPECT_EQ(sum, 100);
  }
}

TEST(ThreadPoolTest, LowestSlicesExceptionIsRethrownAfterAllSlicesEnded) {
  for (int threads : {0, 2}) {
    ThreadPool pool(threads);
    std::atomic<int64_t> covered{0};
    try {
      pool.parallel_for(1000, 1, [&](int64_t begin, int64_t end) {
        covered += end - begin;
        throw ValueError(begin == 0 ? "first" : "later");
      });
      FAIL() << "no error";
    } catch (const ValueError& error) {
      EXPECT_STREQ(error.what(), "first");
    }
    EXPECT_EQ(covered, 1000);
  }
}

}  // namespace
}  // namespace bellows
