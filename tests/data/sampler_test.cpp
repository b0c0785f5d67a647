#include "bellows/data/sampler.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <limits>
#include <thread>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randperm.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/single_thread.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SequentialSamplerTest, CountsUpInEveryEpoch) {
  const SequentialSampler sampler(4);
  EXPECT_EQ(sampler.size(), 4);
  EXPECT_THAT(sampler.indices(0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sampler.indices(9), ElementsAre(0, 1, 2, 3));
}

TEST(RandomSamplerTest, EveryIndexComesOnceAndEpochsDiffer) {
  const RandomSampler sampler(1000, 7);
  const auto first = sampler.indices(0);
  const auto second = sampler.indices(1);
  EXPECT_NE(first, second);
  auto sorted = first;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, SequentialSampler(1000).indices(0));
}

// Long orders are made by one thread: the caller's number of threads is lowered, and put back.
TEST(RandomSamplerTest, ThreadsOfLibTorchAreOneForTheOrderAndThenAsBefore) {
  const int before = at::get_num_threads();
  std::thread([] {
    at::set_num_threads(3);
    {
      const SingleThreadOfLibtorch alone;
      EXPECT_EQ(at::get_num_threads(), 1);
    }
    EXPECT_EQ(at::get_num_threads(), 3);
    const auto order = RandomSampler(100'000, 7).indices(0);
    EXPECT_EQ(at::get_num_threads(), 3);
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
    const at::Tensor expected = at::randperm(100'000, generator);
    EXPECT_TRUE(std::equal(order.begin(), order.end(), expected.const_data_ptr<int64_t>()));
  }).join();
  at::set_num_threads(before);
}

TEST(RandomSamplerTest, OrderDependsOnSeedPlusEpochAlone) {
  const RandomSampler sampler(100, 7);
  const auto order = sampler.indices(3);
  sampler.indices(8);
  EXPECT_EQ(sampler.indices(3), order);
  EXPECT_EQ(RandomSampler(100, 10).indices(0), order);
}

TEST(RandomSamplerTest, SeedPlusEpochWrapsAround) {
  const RandomSampler sampler(100, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(sampler.indices(1), RandomSampler(100, 0).indices(0));
}

TEST(RandomSamplerTest, GlobalGeneratorStaysAsItWas) {
  const auto state = [] { return at::globalContext().defaultGenerator(at::kCPU).get_state(); };
  const at::Tensor before = state();
  RandomSampler(5000, 1).indices(2);
  EXPECT_TRUE(at::equal(state(), before));
}

TEST(RandomSamplerTest, ManyThreadsGetTheSameOrder) {
  const RandomSampler sampler(5000, 1);
  const auto expected = sampler.indices(4);
  std::vector<std::vector<int64_t>> got(4);
  {
    std::vector<std::jthread> threads;
    for (auto& order : got) threads.emplace_back([&] { order = sampler.indices(4); });
  }
  for (const auto& order : got) EXPECT_EQ(order, expected);
}

TEST(RandomSamplerTest, WithReplacementDrawsAsManyAsAskedFor) {
  const auto sampler = RandomSampler::with_replacement(5, 1000, 3);
  EXPECT_EQ(sampler.size(), 1000);
  const auto order = sampler.indices(0);
  EXPECT_EQ(order.size(), 1000u);
  for (int64_t index = 0; index < 5; ++index)
    EXPECT_NEAR(static_cast<double>(std::count(order.begin(), order.end(), index)), 200, 65);
  EXPECT_NE(sampler.indices(1), order);
  EXPECT_EQ(test::message_of<ValueError>([] { RandomSampler::with_replacement(0, 3, 0); }),
            "sampler: got size 0, expected at least 1 to draw 3 samples from");
  EXPECT_THROW(RandomSampler::with_replacement(3, -1, 0), ValueError);
}

TEST(WeightedRandomSamplerTest, DrawsByWeight) {
  const WeightedRandomSampler sampler({0, 1, 3}, 4000, true, 1);
  const auto order = sampler.indices(0);
  EXPECT_EQ(std::count(order.begin(), order.end(), 0), 0);
  EXPECT_NEAR(static_cast<double>(std::count(order.begin(), order.end(), 2)), 3000, 140);
  EXPECT_NE(sampler.indices(1), order);
  auto all = WeightedRandomSampler({1, 5, 2}, 3, false, 1).indices(0);
  std::sort(all.begin(), all.end());
  EXPECT_THAT(all, ElementsAre(0, 1, 2));
}

TEST(WeightedRandomSamplerTest, WeightsThatCannotWorkAreRefused) {
  const auto message = [](std::vector<double> weights, int64_t samples, bool replacement) {
    return test::message_of<ValueError>(
        [&] { WeightedRandomSampler(weights, samples, replacement, 0); });
  };
  EXPECT_EQ(message({}, 1, true), "sampler: got 0 weights, expected 1 to 16777216");
  EXPECT_EQ(message({1, -2}, 1, true),
            "sampler: weight 1 is -2, expected a finite number of 0 or more");
  EXPECT_EQ(message({0, 0}, 1, true), "sampler: all weights are 0, expected one above 0");
  EXPECT_EQ(message({1, 0, 1}, 3, false),
            "sampler: got 3 samples to draw without replacement from 2 weights above 0");
}

TEST(SubsetSamplerTest, GivesTheSubsetInItsOrderOrShuffled) {
  EXPECT_THAT(SubsetSampler({5, 3, 8}).indices(2), ElementsAre(5, 3, 8));
  const SubsetSampler shuffled({5, 3, 8, 1, 4, 9}, 7);
  EXPECT_NE(shuffled.indices(0), shuffled.indices(1));
  EXPECT_THAT(shuffled.indices(1), ::testing::UnorderedElementsAre(5, 3, 8, 1, 4, 9));
}

TEST(SamplerTest, EmptyIsAllowedAndNegativeIsNot) {
  EXPECT_THAT(RandomSampler(0, 1).indices(0), IsEmpty());
  EXPECT_EQ(test::message_of<ValueError>([] { RandomSampler(-1, 0); }),
            "sampler: got size -1, expected 0 or more");
  EXPECT_THROW(SequentialSampler(-1), ValueError);
  EXPECT_EQ(test::message_of<ValueError>([] { RandomSampler(3, 0).indices(-2); }),
            "sampler: got epoch -2, expected 0 or more");
  EXPECT_THROW(SequentialSampler(3).indices(-1), ValueError);
}

}  // namespace
}  // namespace bellows::data
