#include <atomic>
#include <chrono>
#include <condition_variable>
#include <gmock/gmock.h>
#include <mutex>
#include <numeric>
#include <thread>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/loader.h"
#include "bellows/data/tensor_dataset.h"

namespace bellows::data {
namespace {

std::unique_ptr<Loader> numbers(int64_t size, int64_t workers, int64_t batch_size = 4) {
  return make_loader(std::make_shared<TensorDataset>(std::vector<at::Tensor>{at::arange(size)}),
                     std::make_shared<RandomSampler>(size, 3),
                     {.batch_size = batch_size, .workers = workers});
}

std::vector<int64_t> values(const Batch& batch) {
  const auto* data = batch.data[0].tensor().const_data_ptr<int64_t>();
  return {data, data + batch.samples};
}

std::vector<int64_t> rest(Loader& loader) {
  std::vector<int64_t> all;
  while (const auto batch = loader.next()) {
    for (const int64_t value : values(*batch)) all.push_back(value);
  }
  return all;
}

/// Tells which threads call it, and can be made to fail or wait.
class Probe : public Dataset {
 public:
  int64_t size() const override { return 40; }
  Tree get(int64_t index) const override {
    ++calls;
    if (index == bad) throw EnvironmentError("no such picture");
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    return Tree::List{at::full({}, index, at::kLong)};
  }
  std::atomic<int64_t> bad = -1;
  mutable std::atomic<int64_t> calls = 0;
  mutable std::mutex mutex;
  mutable std::set<std::thread::id> threads;
};

TEST(PrefetchLoaderTest, OrderIsTheSameForAnyNumberOfWorkers) {
  const auto expected = [] {
    const auto loader = numbers(101, 0);
    return rest(*loader);
  }();
  for (const int64_t workers : {1, 2, 8}) {
    const auto loader = numbers(101, workers);
    EXPECT_EQ(rest(*loader), expected) << workers;
    EXPECT_FALSE(loader->next());
    loader->start(0);
    EXPECT_EQ(rest(*loader), expected) << workers;
  }
}

TEST(PrefetchLoaderTest, BatchesAreReadAheadOnOtherThreads) {
  const auto probe = std::make_shared<Probe>();
  const auto loader =
      make_loader(probe, std::make_shared<SequentialSampler>(40), {.batch_size = 4, .workers = 2});
  EXPECT_EQ(probe->calls, 0);
  ASSERT_TRUE(loader->next());
  loader->start(0);  // waits for those in preparation: one taken and four ahead
  EXPECT_EQ(probe->calls, 20);
  EXPECT_FALSE(probe->threads.contains(std::this_thread::get_id()));
}

TEST(PrefetchLoaderTest, StateCountsWhatWasConsumed) {
  const auto whole = numbers(40, 0);
  const auto loader = numbers(40, 2);
  loader->next();
  loader->next();
  const Tree state = loader->state_dict();
  EXPECT_EQ(state.at("position").integer(), 2);
  const auto other = numbers(40, 3);
  other->load_state_dict(state);
  whole->next();
  whole->next();
  EXPECT_EQ(rest(*other), rest(*whole));
}

TEST(PrefetchLoaderTest, ErrorComesInOrderWithTheSampleAndTheCallMayBeRepeated) {
  const auto probe = std::make_shared<Probe>();
  probe->bad = 9;
  const auto loader =
      make_loader(probe, std::make_shared<SequentialSampler>(40), {.batch_size = 4, .workers = 2});
  ASSERT_TRUE(loader->next());
  ASSERT_TRUE(loader->next());
  try {
    loader->next();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("sample 9"),
                                               ::testing::HasSubstr("no such picture")));
  }
  EXPECT_EQ(loader->position(), 2);
  probe->bad = -1;
  const auto batch = loader->next();
  ASSERT_TRUE(batch);
  EXPECT_EQ(values(*batch), (std::vector<int64_t>{8, 9, 10, 11}));
}

TEST(PrefetchLoaderTest, LeavingAnEpochAtAnyMomentIsLegal) {
  const auto loader = numbers(100, 4);
  for (int taken = 0; taken < 12; ++taken) {
    loader->start(taken);
    for (int i = 0; i < taken; ++i) ASSERT_TRUE(loader->next());
  }
  loader->start(1);
  EXPECT_EQ(rest(*loader).size(), 100u);
}

/// A reader that is not thread-safe asks for one of its own per worker.
class OwnReader : public Dataset {
 public:
  explicit OwnReader(std::atomic<int>& made) : made_(made) {}
  int64_t size() const override { return 64; }
  Tree get(int64_t index) const override {
    EXPECT_FALSE(busy_.exchange(true)) << "two threads use one reader";
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    busy_ = false;
    return Tree::List{at::full({}, index, at::kLong)};
  }
  std::unique_ptr<Dataset> for_worker() const override {
    ++made_;
    return std::make_unique<OwnReader>(made_);
  }

 private:
  std::atomic<int>& made_;
  mutable std::atomic<bool> busy_ = false;
};

TEST(PrefetchLoaderTest, ReadersThatAreNotThreadSafeAreOnePerWorker) {
  std::atomic<int> made = 0;
  const auto loader =
      make_loader(std::make_shared<OwnReader>(made), std::make_shared<SequentialSampler>(64),
                  {.batch_size = 4, .workers = 3});
  EXPECT_EQ(rest(*loader).size(), 64u);
  EXPECT_GE(made, 1);
  EXPECT_LE(made, 3);
}

TEST(PrefetchLoaderTest, NegativeWorkersAreRefused) {
  EXPECT_THROW(numbers(4, -1), ValueError);
}

}  // namespace
}  // namespace bellows::data
