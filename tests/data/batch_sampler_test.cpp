#include "bellows/data/batch_sampler.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/distributed_sampler.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;
using Order = std::vector<int64_t>;

std::vector<int64_t> some_lengths(int64_t count) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) lengths.push_back(i * 7919 % 97 + 1);
  return lengths;
}

TEST(SequentialBatchesTest, CutsAnOrderIntoBatches) {
  const auto order = std::make_shared<SubsetSampler>(Order{4, 2, 9, 1, 7});
  const BatchList list = SequentialBatches(order, 2, false).batches(0);
  EXPECT_EQ(list.size(), 3);
  EXPECT_THAT(list[1], ::testing::ElementsAre(9, 1));
  EXPECT_THAT(list[2], ::testing::ElementsAre(7));
  EXPECT_EQ(SequentialBatches(order, 2, true).batches(0).size(), 2);
}

TEST(SequentialBatchesTest, OrderHashDoesNotDependOnRanks) {
  const auto of = [](int64_t rank, int64_t ranks, uint64_t seed) {
    return SequentialBatches(std::make_shared<DistributedSampler>(
                                 50, DistributedOptions{rank, ranks}, true, seed),
                             5, false)
        .order_hash(3);
  };
  EXPECT_EQ(of(0, 1, 7), of(1, 2, 7));
  EXPECT_EQ(of(0, 1, 7), of(3, 4, 7));
  EXPECT_NE(of(0, 1, 7), of(0, 1, 8));
}

TEST(LengthBucketsTest, EverySampleComesOnceAndBatchesAreOfLikeLength) {
  const auto lengths = some_lengths(1000);
  const LengthBuckets buckets(lengths, {.batch_size = 8, .bucket_batches = 5});
  std::set<int64_t> seen;
  const BatchList list = buckets.batches(3);
  EXPECT_EQ(list.size(), buckets.size());
  int64_t padded = 0;
  for (int64_t b = 0; b < list.size(); ++b) {
    int64_t shortest = 1000, longest = 0;
    for (const int64_t index : list[b]) {
      EXPECT_TRUE(seen.insert(index).second);
      shortest = std::min(shortest, lengths[static_cast<size_t>(index)]);
      longest = std::max(longest, lengths[static_cast<size_t>(index)]);
    }
    EXPECT_LE(longest - shortest, 5);  // 40 samples next to each other span at most that
    padded += longest * std::ssize(list[b]);
  }
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_EQ(buckets.samples(), 1000);
  const int64_t whole = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  EXPECT_LT(padded, whole * 107 / 100);
}

TEST(LengthBucketsTest, EpochsDifferAndRepeat) {
  const LengthBuckets buckets(some_lengths(200), {.batch_size = 4});
  EXPECT_NE(buckets.batches(0).indices, buckets.batches(1).indices);
  EXPECT_EQ(buckets.batches(1).indices, buckets.batches(1).indices);
  EXPECT_NE(LengthBuckets(some_lengths(200), {.batch_size = 4, .seed = 1}).batches(0).indices,
            buckets.batches(0).indices);
}

TEST(LengthBucketsTest, ElementsOfABatchStayBelowTheLimit) {
  const auto lengths = some_lengths(500);
  const LengthBuckets buckets(lengths,
                              {.batch_size = 64, .max_elements = 200, .bucket_batches = 3});
  int64_t samples = 0;
  for (const int64_t epoch : {0, 1, 2}) {
    const BatchList list = buckets.batches(epoch);
    EXPECT_EQ(list.size(), buckets.size());
    for (int64_t b = 0; b < list.size(); ++b) {
      int64_t longest = 0;
      for (const int64_t index : list[b])
        longest = std::max(longest, lengths[static_cast<size_t>(index)]);
      EXPECT_LE(longest * std::ssize(list[b]), 200);
      samples += std::ssize(list[b]);
    }
  }
  EXPECT_EQ(samples, 1500);
  EXPECT_EQ(message_of<ValueError>([&] { LengthBuckets(lengths, {.max_elements = 50}); }),
            "length buckets: sample 1 has length 63, expected at most max_elements, 50");
}

TEST(LengthBucketsTest, RanksShareEveryBatchWhateverTheirNumber) {
  const auto lengths = some_lengths(103);
  const auto steps = [&](int64_t ranks, int64_t batch_size) {
    std::vector<std::set<int64_t>> sets;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const LengthBuckets buckets(
          lengths,
          {.batch_size = batch_size, .bucket_batches = 2, .rank = rank, .world_size = ranks});
      const BatchList list = buckets.batches(1);
      EXPECT_EQ(std::ssize(list.indices), buckets.samples());
      sets.resize(static_cast<size_t>(list.size()));
      for (int64_t b = 0; b < list.size(); ++b)
        sets[static_cast<size_t>(b)].insert(list[b].begin(), list[b].end());
    }
    return sets;
  };
  const auto one = steps(1, 12);
  EXPECT_EQ(steps(2, 6), one);
  EXPECT_EQ(steps(4, 3), one);
}

TEST(LengthBucketsTest, SettingsThatCannotWorkAreRefused) {
  const Order lengths = {3, 1};
  EXPECT_THAT(message_of<ValueError>([] { LengthBuckets({}, {}); }), HasSubstr("no lengths"));
  EXPECT_THROW(LengthBuckets(lengths, {.batch_size = 0}), ValueError);
  EXPECT_THROW(LengthBuckets(lengths, {.bucket_batches = 0}), ValueError);
  EXPECT_THROW(LengthBuckets(lengths, {.rank = 1}), ValueError);
  EXPECT_THAT(message_of<ValueError>([] {
                LengthBuckets(Order{3, -1}, {});
              }),
              HasSubstr("sample 1 has length -1"));
}

}  // namespace
}  // namespace bellows::data
