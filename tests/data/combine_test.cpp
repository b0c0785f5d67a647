#include "bellows/data/combine.h"

#include <atomic>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/data/loader_support.h"

namespace bellows::data {
namespace {

using test::Probe;

int64_t value(const Tree& sample) {
  return sample[0].tensor().item<int64_t>();
}

Tree add_random(Tree sample, Random& random) {
  sample.list()[0].tensor().add_(random.below(1 << 20) * 100);
  return sample;
}

TEST(CombineTest, MapChangesSamplesAndKeepsSizeAndSource) {
  const auto mapped = map(std::make_shared<Probe>(5), [](Tree sample, Random&) {
    return Tree::List{sample[0].tensor().mul(10)};
  });
  EXPECT_EQ(mapped->size(), 5);
  EXPECT_EQ(value(mapped->get(3)), 30);
  EXPECT_EQ(mapped->source(3), "folder/3.jpg");
}

TEST(CombineTest, RandomMapsDependOnSeedEpochAndIndexAlone) {
  const auto mapped = map(std::make_shared<Probe>(5), add_random);
  const auto read = [&](uint64_t seed, int64_t epoch, int64_t index) {
    return value(mapped->read(index, {seed, epoch})) - index;
  };
  EXPECT_EQ(read(1, 2, 3), read(1, 2, 3));
  EXPECT_NE(read(1, 2, 3), read(2, 2, 3));
  EXPECT_NE(read(1, 2, 3), read(1, 3, 3));
  EXPECT_NE(read(1, 2, 3), read(1, 2, 4));
}

TEST(CombineTest, MapsOnTopOfEachOtherDrawTheirOwnNumbers) {
  const auto once = map(std::make_shared<Probe>(5), add_random);
  const auto twice = map(once, add_random);
  const int64_t first = value(once->read(1, {7, 0})) - 1;
  EXPECT_NE(value(twice->read(1, {7, 0})) - 1, 2 * first);
}

TEST(CombineTest, ConcatGivesOneAfterTheOther) {
  const auto all = concat_datasets({std::make_shared<Probe>(3), std::make_shared<Probe>(2),
                                    std::make_shared<Probe>(0), std::make_shared<Probe>(4)});
  EXPECT_EQ(all->size(), 9);
  EXPECT_EQ(value(all->get(2)), 2);
  EXPECT_EQ(value(all->get(3)), 0);
  EXPECT_EQ(value(all->get(5)), 0);
  EXPECT_EQ(value(all->get(8)), 3);
  EXPECT_EQ(all->source(8), "folder/3.jpg");
  EXPECT_THROW(all->get(9), ValueError);
  EXPECT_THROW(concat_datasets({}), ValueError);
  EXPECT_THROW(concat_datasets({nullptr}), ValueError);
  const auto random = map(std::make_shared<Probe>(3), add_random);
  const auto doubled = concat_datasets({random, random});
  EXPECT_NE(value(doubled->read(0, {5, 0})), value(doubled->read(3, {5, 0})));
}

TEST(CombineTest, SubsetPicksSamples) {
  const auto some = subset(std::make_shared<Probe>(9), {7, 2, 7});
  EXPECT_EQ(some->size(), 3);
  EXPECT_EQ(value(some->get(0)), 7);
  EXPECT_EQ(value(some->get(1)), 2);
  EXPECT_EQ(some->source(2), "folder/7.jpg");
  EXPECT_THROW(some->get(3), ValueError);
  EXPECT_THROW(subset(std::make_shared<Probe>(9), {9}), ValueError);
}

TEST(CombineTest, CacheReadsEachSampleOnceAsFarAsItHasRoom) {
  const auto probe = std::make_shared<Probe>(6);
  const size_t sample_bytes = sizeof(Tree) + sizeof(int64_t);
  const auto cached = cache(probe, 4 * sample_bytes);
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(value(cached->get(i)), i);
  }
  EXPECT_EQ(probe->calls, 6 + 2 * 2);
  Tree taken = cached->get(0);
  taken[0].tensor().fill_(99);
  EXPECT_EQ(value(cached->get(0)), 0) << "what was given out is the caller's";
}

TEST(CombineTest, CacheServesManyWorkers) {
  const auto probe = std::make_shared<Probe>(200);
  const std::shared_ptr<Dataset> cached = cache(probe, 1 << 20);
  const auto loader = make_loader(cached, std::make_shared<SequentialSampler>(200),
                                  {.batch_size = 7, .workers = 4});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    loader->start(epoch);
    int64_t expected = 0;
    for (const auto& batch : test::rest_of_epoch(*loader)) {
      for (const int64_t number : batch) EXPECT_EQ(number, expected++);
    }
  }
  EXPECT_EQ(probe->calls, 200);
}

// A dataset that gives workers their own is still asked when others stand on top.
TEST(CombineTest, WorkersGetTheirOwnThroughAllLayers) {
  struct Own : Probe {
    explicit Own(std::atomic<int>& made) : Probe(8), made_(made) {}
    std::unique_ptr<Dataset> for_worker() const override {
      ++made_;
      return std::make_unique<Own>(made_);
    }
    std::atomic<int>& made_;
  };
  std::atomic<int> made = 0;
  const auto stack =
      cache(map(subset(concat_datasets({std::make_shared<Own>(made), std::make_shared<Probe>(2)}),
                       {9, 1}),
                [](Tree sample, Random&) { return sample; }),
            1000);
  const auto own = stack->for_worker();
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(value(own->get(0)), 1);
  EXPECT_EQ(cache(std::make_shared<Probe>(2), 10)->for_worker(), nullptr);
}

}  // namespace
}  // namespace bellows::data
