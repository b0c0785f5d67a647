// What holds for any number of workers, and what they do ahead of the consumer.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <gmock/gmock.h>
#include <mutex>
#include <set>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "bellows/data/copy_tensor.h"
#include "bellows/data/distributed_sampler.h"
#include "tests/data/loader_support.h"
#include "tests/support/threads.h"

namespace bellows::data {
namespace {

using test::numbers_of;
using test::Probe;
using test::rest_of_epoch;
using testing::threads_of_process;
using testing::threads_settled;
using Order = std::vector<int64_t>;
using Batches = std::vector<Order>;
using namespace std::chrono_literals;

std::unique_ptr<Loader> numbers(int64_t size, LoaderOptions options, uint64_t seed = 3) {
  return make_loader(std::make_shared<TensorDataset>(std::vector<at::Tensor>{at::arange(size)}),
                     std::make_shared<RandomSampler>(size, seed), options);
}

std::unique_ptr<Loader> probed(std::shared_ptr<Probe> probe, LoaderOptions options) {
  const auto order = std::make_shared<SequentialSampler>(probe->size());
  return make_loader(std::move(probe), order, std::move(options));
}

// Samples made over a buffer that is gone when get() has returned.
class OverBuffer : public Dataset {
 public:
  int64_t size() const override { return 64; }
  Tree get(int64_t index) const override {
    std::vector<float> values(96, static_cast<float>(index));
    values[95] = -1;
    return copy_tensor<float>(values, {3, 4, 8});
  }
};

TEST(LoaderWorkersTest, SamplesOutliveTheBufferTheyWereCopiedFrom) {
  const auto loader =
      make_loader(std::make_shared<OverBuffer>(), std::make_shared<SequentialSampler>(64),
                  {.batch_size = 1, .workers = 4});
  for (int64_t i = 0; i < 64; ++i) {
    const at::Tensor sample = loader->next()->data.tensor();
    ASSERT_EQ(sample.sizes(), (at::IntArrayRef{1, 3, 4, 8}));
    EXPECT_EQ(sample[0][0][0][0].item<float>(), static_cast<float>(i));
    EXPECT_EQ(sample[0][2][3][7].item<float>(), -1);
  }
}

TEST(CopyTensorTest, RefusesAShapeOfAnotherSize) {
  const std::vector<int64_t> values = {1, 2, 3};
  EXPECT_EQ(copy_tensor<int64_t>(values, {3, 1}).scalar_type(), at::kLong);
  EXPECT_EQ(copy_tensor<float>({}, {0, 5}).numel(), 0);
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{2}, {4}, {}, {-3}, {-1, -3}, {1LL << 62, 8}}) {
    EXPECT_THROW(copy_tensor<int64_t>(values, sizes), ValueError);
  }
}

TEST(LoaderWorkersTest, OrderIsTheSameForAnyNumberOfWorkers) {
  const RandomSampler sampler(101, 3);
  for (const int64_t workers : {0, 1, 2, 8}) {
    const auto loader = numbers(101, {.batch_size = 4, .workers = workers});
    for (const int64_t epoch : {0, 1, 0}) {
      loader->start(epoch);
      Order all;
      for (const Order& batch : rest_of_epoch(*loader))
        all.insert(all.end(), batch.begin(), batch.end());
      EXPECT_EQ(all, sampler.indices(epoch)) << workers;
      EXPECT_FALSE(loader->next());
    }
  }
}

// Random numbers of samples and batches: the loader's seed alone decides, not who reads when.
TEST(LoaderWorkersTest, RandomNumbersAreTheSameForAnyNumberOfWorkersAndAnyStart) {
  const auto draws = [](int64_t workers, uint64_t seed, int64_t first) {
    const auto loader = probed(
        std::make_shared<Probe>(40, [](int64_t, Random& random) { return random.below(1 << 30); }),
        {.batch_size = 4,
         .workers = workers,
         .seed = seed,
         .on_batch = [](Tree batch, Random& random) {
           batch[0].tensor().add_(random.below(1 << 30));
           return batch;
         }});
    loader->start(2, first);
    return rest_of_epoch(*loader);
  };
  const Batches expected = draws(0, 3, 0);
  EXPECT_EQ(draws(1, 3, 0), expected);
  EXPECT_EQ(draws(4, 3, 0), expected);
  EXPECT_NE(draws(0, 4, 0), expected);
  EXPECT_EQ(draws(2, 3, 7), Batches(expected.begin() + 7, expected.end()));
}

TEST(LoaderWorkersTest, ReadyAndUnreadyBatchesAreBounded) {
  const auto probe = std::make_shared<Probe>(200);
  const auto loader = probed(probe, {.batch_size = 4, .workers = 2, .prefetch = 3});
  EXPECT_EQ(probe->calls, 0) << "nothing is read before it is asked for";
  std::vector<Batch> kept;
  for (int taken = 1; taken <= 5; ++taken) {
    kept.push_back(*loader->next());
    const int64_t bound = (taken + 6) * 4;
    for (int wait = 0; wait < 500 && probe->calls < bound; ++wait) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(probe->calls, bound);
    EXPECT_EQ(loader->report().memory.live, taken + 6);
  }
  EXPECT_FALSE(probe->threads().contains(std::this_thread::get_id()));
}

TEST(LoaderWorkersTest, MemoryIsUsedAgainAndKeptBatchesAreNot) {
  const auto loader = numbers(400, {.batch_size = 4, .workers = 2});
  const Batch first = *loader->next();
  const Order values = numbers_of(first);
  rest_of_epoch(*loader);
  EXPECT_LE(loader->report().memory.allocated, 7);  // in the queue 4, being handed over 2, kept 1
  EXPECT_EQ(numbers_of(first), values);
}

TEST(LoaderWorkersTest, ThreadsStartOnceForAllEpochsAndEndWithTheLoader) {
  const int before = threads_of_process();
  {
    const auto probe = std::make_shared<Probe>(40);
    const auto loader = probed(probe, {.batch_size = 4, .workers = 3});
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      loader->start(epoch);
      rest_of_epoch(*loader);
      EXPECT_EQ(threads_settled(before + 3), before + 3);
    }
    EXPECT_LE(probe->threads().size(), 3u);
  }
  EXPECT_EQ(threads_settled(before), before);
}

TEST(LoaderWorkersTest, WorkersUseOneThreadOfLibTorchAndOthersKeepTheirs) {
  const int before = at::get_num_threads();
  std::atomic<int> inside = 0;
  const auto loader = probed(std::make_shared<Probe>(8,
                                                     [&](int64_t index, Random&) {
                                                       inside = at::get_num_threads();
                                                       return index;
                                                     }),
                             {.batch_size = 4, .workers = 1});
  rest_of_epoch(*loader);
  EXPECT_EQ(inside, 1);
  EXPECT_EQ(at::get_num_threads(), before);
  int later = 0;
  std::thread([&] { later = at::get_num_threads(); }).join();
  EXPECT_EQ(later, before);
}

TEST(LoaderWorkersTest, WorkersReadAtTheSameTime) {
  // Two samples that wait for each other: only two threads at once can read them.
  std::atomic<int> inside = 0;
  const auto loader = probed(std::make_shared<Probe>(2,
                                                     [&](int64_t index, Random&) {
                                                       ++inside;
                                                       while (inside < 2) std::this_thread::yield();
                                                       return index;
                                                     }),
                             {.workers = 2, .timeout = 20s});
  EXPECT_EQ(rest_of_epoch(*loader), (Batches{{0}, {1}}));
}

TEST(LoaderWorkersTest, FirstReadyGoesPastASlowSampleAndLosesNone) {
  std::atomic<bool> go = false;
  const auto slow_first = [&](int64_t index, Random&) {
    while (index == 0 && !go) std::this_thread::sleep_for(1ms);
    return index;
  };
  const auto loader = probed(std::make_shared<Probe>(40, slow_first),
                             {.batch_size = 2, .workers = 4, .in_order = false, .timeout = 20s});
  Order seen;
  for (int taken = 0; taken < 19; ++taken) {
    for (const int64_t index : numbers_of(*loader->next())) seen.push_back(index);
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 0), 0) << "the slow one came first";
  EXPECT_EQ(loader->position(), 19);
  go = true;
  for (const Order& batch : rest_of_epoch(*loader))
    seen.insert(seen.end(), batch.begin(), batch.end());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, SequentialSampler(40).indices(0));
}

TEST(LoaderWorkersTest, LeavingAnEpochAtAnyMomentIsLegal) {
  const auto loader = numbers(100, {.batch_size = 4, .workers = 4});
  for (int taken = 0; taken < 12; ++taken) {
    loader->start(taken);
    for (int i = 0; i < taken; ++i) ASSERT_TRUE(loader->next());
  }
  loader->start(1);
  EXPECT_EQ(rest_of_epoch(*loader), rest_of_epoch(*[] {
              auto other = numbers(100, {.batch_size = 4});
              other->start(1);
              return other;
            }()));
}

TEST(LoaderWorkersTest, AnExceptionInTheConsumersLoopLeavesNoThread) {
  const int before = threads_of_process();
  const auto begin = std::chrono::steady_clock::now();
  try {
    const auto loader = probed(std::make_shared<Probe>(400,
                                                       [](int64_t index, Random&) {
                                                         std::this_thread::sleep_for(20ms);
                                                         return index;
                                                       }),
                               {.batch_size = 10, .workers = 4, .prefetch = 4});
    loader->next();
    throw std::runtime_error("the consumer's own");
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the consumer's own");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 200ms + 1s);
  EXPECT_EQ(threads_settled(before), before);
}

TEST(LoaderWorkersTest, WaitingIsMeasured) {
  const auto loader = probed(std::make_shared<Probe>(4,
                                                     [](int64_t index, Random&) {
                                                       std::this_thread::sleep_for(10ms);
                                                       return index;
                                                     }),
                             {.batch_size = 2});
  rest_of_epoch(*loader);
  EXPECT_GE(loader->report().wait_seconds, 0.04);
  EXPECT_EQ(loader->report().batches, 2);
}

/// A reader that is not thread-safe asks for one of its own per worker.
class OwnReader : public Dataset {
 public:
  explicit OwnReader(std::atomic<int>& made) : made_(made) {}
  int64_t size() const override { return 64; }
  Tree get(int64_t index) const override {
    EXPECT_FALSE(busy_.exchange(true)) << "two threads use one reader";
    std::this_thread::sleep_for(100us);
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

TEST(LoaderWorkersTest, ReadersThatAreNotThreadSafeAreOnePerWorker) {
  std::atomic<int> made = 0;
  const auto loader =
      make_loader(std::make_shared<OwnReader>(made), std::make_shared<SequentialSampler>(64),
                  {.batch_size = 4, .workers = 3});
  EXPECT_EQ(rest_of_epoch(*loader).size(), 16u);
  EXPECT_GE(made, 1);
  EXPECT_LE(made, 3);
}

TEST(LoaderWorkersTest, StateCountsWhatWasConsumedWhateverIsAhead) {
  for (int64_t consumed = 0; consumed <= 10; ++consumed) {
    const auto unbroken = numbers(40, {.batch_size = 4, .workers = 4, .prefetch = 8});
    for (int64_t i = 0; i < consumed; ++i) unbroken->next();
    const Tree state = unbroken->state_dict();
    EXPECT_EQ(state.at("position").integer(), consumed);
    const Batches expected = rest_of_epoch(*unbroken);
    for (const int64_t workers : {0, 1, 2}) {
      const auto resumed = numbers(40, {.batch_size = 4, .workers = workers});
      resumed->load_state_dict(state);
      EXPECT_EQ(rest_of_epoch(*resumed), expected) << consumed << " " << workers;
    }
  }
}

TEST(LoaderWorkersTest, StateOfFirstReadyLeavesOutExactlyWhatCame) {
  std::atomic<bool> go = false;
  const auto slow = [&](int64_t index, Random&) {
    while (index == 6 && !go) std::this_thread::sleep_for(1ms);
    return index;
  };
  const LoaderOptions options{.batch_size = 2, .workers = 3, .in_order = false, .timeout = 20s};
  const auto probe = std::make_shared<Probe>(30, slow);
  const auto loader = probed(probe, options);
  std::multiset<int64_t> seen;
  for (int taken = 0; taken < 8; ++taken) {
    for (const int64_t index : numbers_of(*loader->next())) seen.insert(index);
  }
  EXPECT_EQ(loader->position(), 8);
  go = true;
  const auto resumed = probed(probe, options);
  resumed->load_state_dict(loader->state_dict());
  EXPECT_EQ(resumed->position(), 8);
  for (const Order& batch : rest_of_epoch(*resumed)) seen.insert(batch.begin(), batch.end());
  const Order all = SequentialSampler(30).indices(0);
  EXPECT_EQ(seen, std::multiset<int64_t>(all.begin(), all.end()));
}

// World size 2 -> 1 -> 2 at every batch: each step of all ranks together has the same samples.
TEST(LoaderWorkersTest, AnotherNumberOfRanksGoesOnWithTheSameSamples) {
  constexpr int64_t kGlobalBatch = 6;
  const auto rank_loader = [](int64_t rank, int64_t ranks) {
    return make_loader(std::make_shared<TensorDataset>(std::vector<at::Tensor>{at::arange(36)}),
                       std::make_shared<DistributedSampler>(36, DistributedOptions{rank, ranks}),
                       {.batch_size = kGlobalBatch / ranks, .workers = ranks});
  };
  using Steps = std::vector<std::set<int64_t>>;
  // Runs `steps` steps from `state` (null: from the start of epoch 1), and gives the state after.
  const auto run = [&](int64_t ranks, int64_t steps, Tree& state, Steps& seen) {
    Steps got(static_cast<size_t>(steps));
    Tree after;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto loader = rank_loader(rank, ranks);
      if (state.empty()) {
        loader->start(1);
      } else {
        loader->load_state_dict(state);
      }
      for (auto& step : got) {
        for (const int64_t index : numbers_of(*loader->next())) step.insert(index);
      }
      after = loader->state_dict();
    }
    state = after;
    seen.insert(seen.end(), got.begin(), got.end());
  };
  Steps expected;
  Tree none;
  run(1, 6, none, expected);
  for (int64_t first = 0; first <= 6; ++first) {
    for (int64_t second = 0; first + second <= 6; ++second) {
      Tree state;
      Steps seen;
      run(2, first, state, seen);
      run(1, second, state, seen);
      run(3, 6 - first - second, state, seen);
      EXPECT_EQ(seen, expected) << first << " " << second;
    }
  }
}

TEST(LoaderWorkersTest, ARankOfSeveralMayHaveNothing) {
  const auto loader =
      make_loader(std::make_shared<TensorDataset>(std::vector<at::Tensor>{at::arange(2)}),
                  std::make_shared<DistributedSampler>(2, DistributedOptions{3, 4, Uneven::keep}),
                  {.batch_size = 2, .workers = 1});
  EXPECT_EQ(loader->batches(), 0);
  EXPECT_FALSE(loader->next());
}

TEST(LoaderWorkersTest, BatchesAsABatchSamplerSays) {
  const std::vector<int64_t> lengths = {5, 1, 4, 2, 3, 9};
  const auto buckets = std::make_shared<LengthBuckets>(
      lengths, LengthBucketOptions{.batch_size = 2, .shuffle = false});
  for (const int64_t workers : {0, 2}) {
    const auto loader =
        make_loader(std::make_shared<TensorDataset>(std::vector<at::Tensor>{at::arange(6)}),
                    buckets, {.workers = workers});
    EXPECT_EQ(rest_of_epoch(*loader), (Batches{{1, 3}, {4, 2}, {0, 5}}));
  }
  EXPECT_THROW(make_loader(std::make_shared<Probe>(6), buckets, {.batch_size = 2}), ValueError);
}

TEST(LoaderWorkersTest, OptionsOutOfRangeAreRefused) {
  EXPECT_EQ(test::message_of<ValueError>([] { numbers(4, {.workers = -1}); }),
            "loader: workers must be 0 or more, got -1");
  EXPECT_THROW(numbers(4, {.prefetch = 0}), ValueError);
  EXPECT_THROW(numbers(4, {.timeout = -1ms}), ValueError);
  EXPECT_THROW(
      numbers(4, {.pad = 0, .collate = [](std::span<const Tree>, BatchMemory&) { return Tree(); }}),
      ValueError);
}

}  // namespace
}  // namespace bellows::data
