#include "bellows/memory/batch_size.h"

#include <gmock/gmock.h>
#include <new>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "bellows/memory/out_of_memory.h"
#include "tests/support/message_of.h"

namespace bellows::memory {
namespace {

using ::bellows::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

[[noreturn]] void run_out() {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "injected");
  std::abort();
}

// A step that fits up to `limit`, and the sizes tried.
struct Step {
  int64_t limit;
  std::vector<int64_t> tried = {};
  void operator()(int64_t size) {
    tried.push_back(size);
    if (size > limit) run_out();
  }
};

int64_t found(Step& step, const BatchSizeOptions& options = {}) {
  return find_batch_size([&](int64_t size) { step(size); }, options);
}

TEST(BatchSize, BinarySearchFindsTheLargest) {
  for (const int64_t limit : {1, 2, 3, 36, 37, 64, 1000}) {
    Step step{limit};
    EXPECT_EQ(found(step), limit);
  }
}

TEST(BatchSize, PowerSearchStopsAtTheLastThatFits) {
  Step step{37};
  EXPECT_EQ(found(step, {.search = Search::power, .steps = 2}), 32);
  EXPECT_THAT(step.tried, ElementsAre(1, 2, 4, 8, 16, 32, 64, 32, 32));
}

TEST(BatchSize, AStartThatDoesNotFitGoesDown) {
  Step step{37};
  EXPECT_EQ(found(step, {.start = 300}), 37);
  Step power{37};
  EXPECT_EQ(found(power, {.search = Search::power, .start = 256}), 32);
}

TEST(BatchSize, TheLimitIsNotPassed) {
  Step step{1000};
  EXPECT_EQ(found(step, {.limit = 100}), 100);
  EXPECT_EQ(*std::max_element(step.tried.begin(), step.tried.end()), 100);
}

TEST(BatchSize, ASizeThatFailsLaterIsNotReported) {
  int64_t runs = 0;
  const int64_t size = find_batch_size([&](int64_t size) {
    if (size > 64) run_out();
    runs = size == 64 ? runs + 1 : runs;
    if (size == 64 && runs >= 3) run_out();  // the third step in a row
  });
  EXPECT_LT(size, 64);
  EXPECT_GE(size, 56);
}

TEST(BatchSize, WhatAFailedTrialHeldIsFreedBeforeTheNext) {
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> held;
  int resets = 0;
  find_batch_size(
      [&](int64_t size) {
        if (held) {
          EXPECT_TRUE(held->expired());
        }
        const at::Tensor activation = at::empty({size});
        held.emplace(activation.storage().getWeakStorageImpl());
        if (size > 5) run_out();
      },
      {.reset = [&] { ++resets; }});
  EXPECT_GT(resets, 5);
}

TEST(BatchSize, OtherErrorsPassThrough) {
  EXPECT_THROW(find_batch_size([](int64_t) { throw ValueError("not memory"); }), ValueError);
}

TEST(BatchSize, NotEvenOneIsAnError) {
  Step step{0};
  EXPECT_THAT(message_of<Error>([&] { found(step); }), HasSubstr("not even one sample fits"));
}

TEST(BatchSize, RanksAgreeOnTheLeast) {
  Step step{37};
  // Another rank fits 20.
  EXPECT_EQ(find_batch_size([&](int64_t size) { step(size); },
                            {.agree = [&](bool fits) { return fits && step.tried.back() <= 20; }}),
            20);
}

TEST(BatchSize, OptionsOutOfRangeAreRefused) {
  Step step{3};
  EXPECT_THAT(message_of<ValueError>([&] { found(step, {.start = 0}); }),
              HasSubstr("start: got 0"));
  EXPECT_THAT(message_of<ValueError>([&] { found(step, {.steps = 0}); }),
              HasSubstr("steps: got 0"));
  EXPECT_THAT(message_of<ValueError>([&] { found(step, {.start = 8, .limit = 4}); }),
              HasSubstr("limit: got 4"));
  EXPECT_TRUE(step.tried.empty());
}

TEST(OutOfMemory, IsToldByType) {
  const auto caught = [](const std::function<void()>& fn) {
    try {
      fn();
    } catch (...) {
      return is_out_of_memory(std::current_exception());
    }
    return false;
  };
  EXPECT_TRUE(caught([] { run_out(); }));
  EXPECT_TRUE(caught([] { throw std::bad_alloc(); }));
  EXPECT_FALSE(caught([] { throw std::runtime_error("out of memory"); }));
  EXPECT_FALSE(caught([] { TORCH_CHECK(false, "out of memory"); }));
  EXPECT_FALSE(caught([] { throw 3; }));
  EXPECT_FALSE(is_out_of_memory(std::exception_ptr()));
}

TEST(OutOfMemory, TheCpuAllocatorsErrorIsKnown) {
  try {
    at::empty({int64_t{1} << 50});
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_TRUE(is_out_of_memory(error)) << error.what();
  }
}

}  // namespace
}  // namespace bellows::memory
