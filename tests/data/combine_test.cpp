#include "bellows/data/combine.h"

#include <atomic>
#include <gmock/gmock.h>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/data/tensor_dataset.h"
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

std::shared_ptr<TensorDataset> zeros(int64_t size) {
  return std::make_shared<TensorDataset>(std::vector<at::Tensor>{at::zeros({size}, at::kLong)});
}

Tree add_random_to_each(Tree batch, std::span<Random> randoms, BatchMemory&) {
  for (size_t i = 0; i < randoms.size(); ++i)
    batch.list()[0].tensor()[static_cast<int64_t>(i)].add_(randoms[i].below(1 << 20) * 100);
  return batch;
}

TEST(CombineTest, BatchMapsDrawForEachSampleWhatMapsDraw) {
  const auto single = map(zeros(6), add_random);
  const auto whole = map_batches(zeros(6), add_random_to_each);
  const Pass pass{3, 4};
  BatchMemory memory;
  const std::vector<int64_t> indices = {4, 1, 5};
  const at::Tensor batch = whole->read_batch(indices, pass, memory)[0].tensor();
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t index = indices[static_cast<size_t>(i)];
    EXPECT_EQ(batch[i].item<int64_t>(), value(single->read(index, pass)));
    EXPECT_EQ(value(whole->read(index, pass)), value(single->read(index, pass)));
  }
  EXPECT_EQ(value(whole->get(2)), value(single->get(2)));
  EXPECT_EQ(whole->size(), 6);
}

TEST(CombineTest, MapsAndBatchMapsOnTopOfEachOtherDrawTheirOwnNumbers) {
  const Pass pass{7, 0};
  const auto once = map_batches(zeros(6), add_random_to_each);
  const int64_t first = value(once->read(1, pass));
  EXPECT_NE(value(map(once, add_random)->read(1, pass)), 2 * first);
  EXPECT_NE(value(map_batches(once, add_random_to_each)->read(1, pass)), 2 * first);
  EXPECT_EQ(value(map(once, add_random)->read(1, pass)),
            value(map_batches(once, add_random_to_each)->read(1, pass)));
}

// Gives workers datasets of their own, with or without batches.
struct ForWorkers : BatchDataset {
  explicit ForWorkers(bool batches) : batches_(batches) {}
  int64_t size() const override { return 3; }
  Tree get(int64_t index) const override { return Tree::List{at::full({}, index, at::kLong)}; }
  Tree read_batch(std::span<const int64_t> indices, const Pass&, BatchMemory&) const override {
    return Dataset::get_batch(indices);
  }
  std::unique_ptr<Dataset> for_worker() const override {
    if (batches_) return std::make_unique<ForWorkers>(true);
    return std::make_unique<Probe>(3);
  }
  const bool batches_;
};

TEST(CombineTest, ABatchMapsWorkersGetItsTransformToo) {
  const auto add_ten = [](Tree batch, std::span<Random>, BatchMemory&) {
    batch.list()[0].tensor().add_(10);
    return batch;
  };
  EXPECT_EQ(map_batches(zeros(2), add_ten)->for_worker(), nullptr);
  const auto own = map_batches(std::make_shared<ForWorkers>(true), add_ten)->for_worker();
  EXPECT_EQ(value(own->get(2)), 12);
  EXPECT_NE(dynamic_cast<const BatchDataset*>(own.get()), nullptr);
  const auto mixed = map_batches(std::make_shared<ForWorkers>(false), add_ten);
  EXPECT_THROW(mixed->for_worker(), ValueError);
  EXPECT_THROW(map_batches(nullptr, add_ten), ValueError);
  EXPECT_THROW(map_batches(zeros(2), nullptr), ValueError);
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
