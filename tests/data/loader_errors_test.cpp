// Samples that cannot be read, do not go together, or never come.
#include <atomic>
#include <chrono>
#include <gmock/gmock.h>
#include <limits>
#include <stdexcept>
#include <thread>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/data/loader_support.h"
#include "tests/support/threads.h"

namespace bellows::data {
namespace {

using test::message_of;
using test::numbers_of;
using test::Probe;
using test::rest_of_epoch;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::threads_of_process;
using testing::threads_settled;
using Order = std::vector<int64_t>;
using Batches = std::vector<Order>;
using namespace std::chrono_literals;

std::unique_ptr<Loader> in_order(std::shared_ptr<const Dataset> dataset, LoaderOptions options) {
  const auto order = std::make_shared<SequentialSampler>(dataset->size());
  return make_loader(std::move(dataset), order, std::move(options));
}

std::shared_ptr<Probe> failing_at(int64_t bad) {
  return std::make_shared<Probe>(40, [bad](int64_t index, Random&) {
    if (index == bad) throw std::runtime_error("the image is unreadable");
    return index;
  });
}

// What a user's code throws need not be a std::exception.
TEST(LoaderErrorsTest, WhateverIsThrownIsASampleError) {
  for (const int64_t workers : {0, 2}) {
    const auto odd = [] {
      return std::make_shared<Probe>(8, [](int64_t index, Random&) {
        if (index == 5) throw 42;
        return index;
      });
    };
    const auto raising = in_order(odd(), {.batch_size = 4, .workers = workers});
    raising->next();
    EXPECT_THAT(message_of<SampleError>([&] { raising->next(); }),
                HasSubstr("sample 5 (folder/5.jpg): something that is no std::exception"));
    const auto skipping =
        in_order(odd(), {.batch_size = 4, .workers = workers, .on_error = OnError::skip});
    EXPECT_EQ(rest_of_epoch(*skipping), (Batches{{0, 1, 2, 3}, {4, 6, 7}}));
    EXPECT_EQ(skipping->report().skipped, 1);
    const auto collating = in_order(
        odd(),
        {.batch_size = 4, .workers = workers, .collate = [](auto, auto&) -> Tree { throw 42; }});
    EXPECT_THAT(message_of<Error>([&] { collating->next(); }),
                HasSubstr("batch 0 of epoch 0: something that is no std::exception"));
  }
}

TEST(LoaderErrorsTest, CollateErrorOfASampleThatIsNotThereIsAnError) {
  for (const OnError policy : {OnError::raise, OnError::skip}) {
    const auto loader =
        in_order(std::make_shared<Probe>(4),
                 {.batch_size = 4, .on_error = policy, .collate = [](auto, auto&) -> Tree {
                    throw CollateError(99, "mine");
                  }});
    EXPECT_THAT(message_of<Error>([&] { loader->next(); }),
                HasSubstr("names sample 99 of 4: mine"));
  }
}

// Two batches that end where the test says.
class OddBatches : public BatchSampler {
 public:
  explicit OddBatches(Order ends) : ends_(std::move(ends)) {}
  int64_t size() const override { return std::ssize(ends_); }
  int64_t samples() const override { return 2; }
  int64_t batch_size() const override { return 1; }
  BatchList batches(int64_t) const override { return {{0, 1}, ends_}; }
  int64_t world_size() const override { return 1; }
  uint64_t order_hash(int64_t) const override { return 0; }

 private:
  Order ends_;
};

TEST(LoaderErrorsTest, BatchesThatEndElsewhereAreRefused) {
  const auto make = [](Order ends) {
    return make_loader(std::make_shared<Probe>(2), std::make_shared<OddBatches>(std::move(ends)),
                       LoaderOptions{});
  };
  EXPECT_EQ(rest_of_epoch(*make({1, 2})), (Batches{{0}, {1}}));
  for (const Order& ends : {Order{100, 200}, {2, 1}, {-1, 2}, {1, 3}}) {
    EXPECT_THAT(message_of<ValueError>([&] { make(ends); }), HasSubstr("expected rising places"));
  }
}

TEST(LoaderErrorsTest, ExtremeOptionsAreRefused) {
  const auto refused = [](LoaderOptions options) {
    EXPECT_THROW(in_order(std::make_shared<Probe>(4), options), ValueError);
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  refused({.workers = 2, .prefetch = kMost});
  refused({.workers = kMost});
  refused({.timeout = std::chrono::milliseconds::max()});
  refused({.stop_timeout = std::chrono::milliseconds::max()});
}

TEST(LoaderErrorsTest, ErrorComesInOrderWithSampleSourceAndText) {
  for (const int64_t workers : {0, 1, 4}) {
    const auto loader = in_order(failing_at(13), {.batch_size = 4, .workers = workers});
    EXPECT_EQ(numbers_of(*loader->next()), (Order{0, 1, 2, 3}));
    EXPECT_EQ(numbers_of(*loader->next()), (Order{4, 5, 6, 7}));
    EXPECT_EQ(numbers_of(*loader->next()), (Order{8, 9, 10, 11}));
    for (int again = 0; again < 2; ++again) {
      try {
        loader->next();
        FAIL() << "no error";
      } catch (const SampleError& error) {
        EXPECT_EQ(error.index(), 13);
        EXPECT_STREQ(error.what(), "sample 13 (folder/13.jpg): the image is unreadable");
        EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
      }
      EXPECT_EQ(loader->position(), 3);
    }
    loader->start(0, 4);
    EXPECT_EQ(numbers_of(*loader->next()), (Order{16, 17, 18, 19})) << workers;
  }
}

TEST(LoaderErrorsTest, ABatchThatFailedIsReadAgainOnTheNextCall) {
  for (const int64_t workers : {0, 2}) {
    std::atomic<int> failures = 1;
    const auto loader = in_order(std::make_shared<Probe>(12,
                                                         [&](int64_t index, Random&) {
                                                           if (index == 5 && failures-- > 0)
                                                             throw std::runtime_error("once");
                                                           return index;
                                                         }),
                                 {.batch_size = 4, .workers = workers});
    loader->next();
    EXPECT_THROW(loader->next(), SampleError);
    EXPECT_EQ(rest_of_epoch(*loader), (Batches{{4, 5, 6, 7}, {8, 9, 10, 11}}));
  }
}

TEST(LoaderErrorsTest, AFailedBatchIsReadAgainAlsoWhereAllOthersAreReady) {
  std::atomic<int> failures = 1;
  const auto probe = std::make_shared<Probe>(12, [&](int64_t index, Random&) {
    if (index == 0 && failures-- > 0) throw std::runtime_error("once");
    return index;
  });
  const auto loader =
      in_order(probe, {.batch_size = 1, .workers = 2, .prefetch = 2, .timeout = 20s});
  EXPECT_THROW(loader->next(), SampleError);
  for (int wait = 0; wait < 500 && probe->calls < 3; ++wait) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(rest_of_epoch(*loader).size(), 12u);
}

TEST(LoaderErrorsTest, SkippedSamplesAreLeftOutAndCounted) {
  const auto dataset = std::make_shared<Probe>(12, [](int64_t index, Random&) {
    if (index == 1 || (index >= 4 && index < 8)) throw std::runtime_error("damaged");
    return index;
  });
  for (const int64_t workers : {0, 2}) {
    const auto loader =
        in_order(dataset, {.batch_size = 4, .workers = workers, .on_error = OnError::skip});
    EXPECT_EQ(numbers_of(*loader->next()), (Order{0, 2, 3}));
    EXPECT_EQ(loader->report().skipped, 1) << "only what was consumed counts";
    EXPECT_EQ(numbers_of(*loader->next()), (Order{8, 9, 10, 11}));
    EXPECT_FALSE(loader->next());
    EXPECT_EQ(loader->position(), 3);
    const LoaderReport report = loader->report();
    EXPECT_EQ(report.skipped, 5);
    EXPECT_EQ(report.batches, 2);
    EXPECT_EQ(report.first_skipped.at(2).index, 5);
    EXPECT_EQ(report.first_skipped.at(2).reason, "sample 5 (folder/5.jpg): damaged");
  }
}

// Sample 6 has another shape than the others.
class OddShape : public Dataset {
 public:
  int64_t size() const override { return 12; }
  Tree get(int64_t index) const override {
    return Tree::List{at::zeros({}, at::kLong).add_(index),
                      Tree::Dict{{"image", at::ones({index == 6 ? 4 : 3, 2})}}};
  }
};

TEST(LoaderErrorsTest, ShapesThatDoNotCollateNameSampleFieldAndBothShapes) {
  for (const int64_t workers : {0, 2}) {
    const auto loader =
        in_order(std::make_shared<OddShape>(), {.batch_size = 4, .workers = workers});
    loader->next();
    EXPECT_EQ(message_of<SampleError>([&] { loader->next(); }),
              "sample 6: collate: entry '1.image' of sample 2 of the batch has shape [4, 2], "
              "expected shape [3, 2] as in sample 0: samples of one batch must have the same "
              "structure");
  }
  const auto skipping =
      in_order(std::make_shared<OddShape>(), {.batch_size = 4, .on_error = OnError::skip});
  EXPECT_EQ(rest_of_epoch(*skipping), (Batches{{0, 1, 2, 3}, {4, 5, 7}, {8, 9, 10, 11}}));
  EXPECT_EQ(skipping->report().skipped, 1);
  const auto padded = in_order(std::make_shared<OddShape>(), {.batch_size = 4, .pad = -1});
  padded->next();
  const at::Tensor images = padded->next()->data[1].at("image").tensor();
  EXPECT_EQ(images.sizes(), (at::IntArrayRef{4, 4, 2}));
  EXPECT_EQ(images[0][3][0].item<float>(), -1);
  EXPECT_EQ(images[2][3][0].item<float>(), 1);
}

TEST(LoaderErrorsTest, CollateOfTheUserIsUsedAndItsErrorsNameTheBatch) {
  const Collate sum = [](std::span<const Tree> samples, BatchMemory& memory) -> Tree {
    at::Tensor result = memory.empty({static_cast<int64_t>(samples.size())}, at::kLong);
    for (size_t i = 0; i < samples.size(); ++i)
      result[static_cast<int64_t>(i)].copy_(samples[i][0].tensor().mul(10));
    if (result[0].item<int64_t>() == 80) throw std::logic_error("no eighty");
    return Tree::List{result};
  };
  for (const int64_t workers : {0, 2}) {
    const auto loader = in_order(std::make_shared<Probe>(12),
                                 {.batch_size = 4, .workers = workers, .collate = sum});
    EXPECT_EQ(numbers_of(*loader->next()), (Order{0, 10, 20, 30}));
    loader->next();
    EXPECT_EQ(message_of<Error>([&] { loader->next(); }), "batch 2 of epoch 0: no eighty");
  }
}

// Blocks in one sample until it is let go.
struct Blocked {
  std::shared_ptr<std::atomic<bool>> go = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<Probe> dataset = std::make_shared<Probe>(40, [go = go](int64_t index, Random&) {
    while (index == 7 && !*go) std::this_thread::sleep_for(1ms);
    return index;
  });
};

TEST(LoaderErrorsTest, TimeOutNamesBatchWorkerSampleAndFileAndTheCallMayBeRepeated) {
  const Blocked blocked;
  const auto loader = in_order(blocked.dataset, {.batch_size = 5, .workers = 2, .timeout = 100ms});
  EXPECT_EQ(numbers_of(*loader->next()), (Order{0, 1, 2, 3, 4}));
  for (int again = 0; again < 2; ++again) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(
        message_of<TimeoutError>([&] { loader->next(); }),
        AllOf(HasSubstr("loader: batch 1 of epoch 0 did not come within 100 ms: "),
              ::testing::ContainsRegex("worker [01] reads batch 1, sample 7 \\(folder/7.jpg\\)")));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 100ms);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 100ms + 1s);
  }
  *blocked.go = true;
  EXPECT_EQ(numbers_of(*loader->next()), (Order{5, 6, 7, 8, 9}));
}

TEST(LoaderErrorsTest, AStuckWorkerDoesNotHoldUpTheNextEpochNorTheEnd) {
  const Blocked blocked;
  const int before = threads_of_process();
  const auto begin = std::chrono::steady_clock::now();
  {
    const auto loader = in_order(
        blocked.dataset, {.batch_size = 5, .workers = 2, .timeout = 100ms, .stop_timeout = 50ms});
    loader->next();
    EXPECT_THROW(loader->next(), TimeoutError);
    loader->start(0, 2);  // the other worker goes on
    EXPECT_EQ(numbers_of(*loader->next()), (Order{10, 11, 12, 13, 14}));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 150ms + 1s);
  EXPECT_GT(blocked.dataset.use_count(), 1) << "the worker left behind keeps the dataset";
  *blocked.go = true;
  for (int wait = 0; wait < 2000 && blocked.dataset.use_count() > 1; ++wait)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(blocked.dataset.use_count(), 1);
  EXPECT_EQ(threads_settled(before), before);
}

TEST(LoaderErrorsTest, DestructionAtAnyMomentIsBounded) {
  const int before = threads_of_process();
  for (int round = 0; round < 60; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    {
      const auto loader =
          in_order(failing_at(round % 20), {.batch_size = 3, .workers = 1 + round % 4});
      for (int i = 0; i < round % 7; ++i) {
        try {
          loader->next();
        } catch (const SampleError&) {
          loader->start(1, round % 3);
        }
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
    EXPECT_EQ(threads_settled(before), before);
  }
}

}  // namespace
}  // namespace bellows::data
