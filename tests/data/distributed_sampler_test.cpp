#include "bellows/data/distributed_sampler.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <numeric>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Order = std::vector<int64_t>;

Order of_all_ranks(int64_t size, int64_t world_size, Uneven uneven, int64_t epoch = 0) {
  Order all;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const DistributedSampler sampler(size, {rank, world_size, uneven}, /*shuffle=*/true, 5);
    const Order mine = sampler.indices(epoch);
    EXPECT_EQ(std::ssize(mine), sampler.size());
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

Order counting(int64_t size) {
  Order order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

// The orders themselves are compared with PyTorch's in tests/python/sampler_order.py.
TEST(DistributedSamplerTest, RanksAreDisjointAndCoverAll) {
  for (const int64_t size : {1, 5, 8, 17}) {
    for (const int64_t ranks : {1, 2, 3, 8}) {
      EXPECT_EQ(of_all_ranks(size, ranks, Uneven::keep), counting(size)) << size << " " << ranks;
      EXPECT_EQ(std::ssize(of_all_ranks(size, ranks, Uneven::drop)), size / ranks * ranks);
      Order padded = of_all_ranks(size, ranks, Uneven::pad);
      EXPECT_EQ(std::ssize(padded), (size + ranks - 1) / ranks * ranks);
      padded.erase(std::unique(padded.begin(), padded.end()), padded.end());
      EXPECT_EQ(padded, counting(size));
    }
  }
}

TEST(DistributedSamplerTest, MoreRanksThanSamplesRepeatTheWholeOrder) {
  const auto rank = [](int64_t r) {
    return DistributedSampler(3, {r, 8}, /*shuffle=*/false).indices(0);
  };
  EXPECT_THAT(rank(2), ElementsAre(2));
  EXPECT_THAT(rank(5), ElementsAre(2));
  EXPECT_THAT(rank(7), ElementsAre(1));
  EXPECT_THAT(DistributedSampler(3, {5, 8, Uneven::keep}).indices(0), IsEmpty());
}

TEST(DistributedSamplerTest, EpochsDifferAndRepeat) {
  const DistributedSampler sampler(64, {1, 2});
  EXPECT_NE(sampler.indices(0), sampler.indices(1));
  EXPECT_EQ(sampler.indices(1), sampler.indices(1));
}

TEST(DistributedSamplerTest, DealsOutAnyOrder) {
  const auto order = std::make_shared<SubsetSampler>(Order{9, 7, 5, 3, 1});
  EXPECT_THAT(DistributedSampler(order, {0, 2}).indices(4), ElementsAre(9, 5, 1));
  EXPECT_THAT(DistributedSampler(order, {1, 2}).indices(4), ElementsAre(7, 3, 9));
  EXPECT_EQ(DistributedSampler(order, {1, 2}).global_indices(4), order->indices(4));
  EXPECT_EQ(DistributedSampler(order, {1, 2}).global_size(), 5);
}

TEST(DistributedSamplerTest, RanksOutOfRangeAreRefused) {
  EXPECT_EQ(test::message_of<ValueError>([] {
              DistributedSampler(3, {2, 2});
            }),
            "distributed sampler: got rank 2 of 2, expected a rank from 0 to world size - 1");
  EXPECT_THROW(DistributedSampler(3, {-1, 2}), ValueError);
  EXPECT_THROW(DistributedSampler(3, {0, 0}), ValueError);
  EXPECT_THROW(DistributedSampler(nullptr, {0, 1}), ValueError);
}

}  // namespace
}  // namespace bellows::data
