#include "bellows/data/loader.h"

#include <gmock/gmock.h>
#include <memory>
#include <stdexcept>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/tensor_dataset.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Order = std::vector<int64_t>;

// Sample i is the number i.
std::shared_ptr<Dataset> counting_dataset(int64_t size) {
  return std::make_shared<TensorDataset>(std::vector<at::Tensor>{at::arange(size)});
}

std::unique_ptr<Loader> shuffled(int64_t size, LoaderOptions options, uint64_t seed = 7) {
  return make_loader(counting_dataset(size), std::make_shared<RandomSampler>(size, seed), options);
}

std::unique_ptr<Loader> in_order(int64_t size, LoaderOptions options) {
  return make_loader(counting_dataset(size), std::make_shared<SequentialSampler>(size), options);
}

Order numbers(const Batch& batch) {
  const at::Tensor& tensor = batch.data[0].tensor();
  EXPECT_EQ(tensor.size(0), batch.samples);
  return Order(tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + batch.samples);
}

std::vector<Order> rest_of_epoch(Loader& loader) {
  std::vector<Order> batches;
  while (const auto batch = loader.next()) batches.push_back(numbers(*batch));
  return batches;
}

// A sampler with a fixed order and size.
class FixedSampler : public Sampler {
 public:
  explicit FixedSampler(Order order) : FixedSampler(order, static_cast<int64_t>(order.size())) {}
  FixedSampler(Order order, int64_t size) : order_(std::move(order)), size_(size) {}
  int64_t size() const override { return size_; }
  Order indices(int64_t) const override { return order_; }

 private:
  Order order_;
  int64_t size_;
};

TEST(LoaderTest, BatchesFollowTheSamplerAndTheLastOneIsSmaller) {
  const auto loader = in_order(7, {.batch_size = 3});
  EXPECT_EQ(loader->batches(), 3);
  EXPECT_EQ(loader->samples(), 7);
  EXPECT_EQ(loader->batch_size(), 3);
  EXPECT_THAT(rest_of_epoch(*loader), ElementsAre(Order{0, 1, 2}, Order{3, 4, 5}, Order{6}));
}

TEST(LoaderTest, DropLastLeavesOutTheSmallerBatchAndCountsSo) {
  const auto loader = in_order(7, {.batch_size = 3, .drop_last = true});
  EXPECT_EQ(loader->batches(), 2);
  EXPECT_EQ(loader->samples(), 6);
  EXPECT_THAT(rest_of_epoch(*loader), ElementsAre(Order{0, 1, 2}, Order{3, 4, 5}));
}

TEST(LoaderTest, CountsAgreeWithWhatComesOutForEverySize) {
  for (int64_t size = 1; size <= 13; ++size) {
    for (int64_t batch_size = 1; batch_size <= size; ++batch_size) {
      for (const bool drop_last : {false, true}) {
        const auto loader = shuffled(size, {.batch_size = batch_size, .drop_last = drop_last});
        int64_t samples = 0;
        const auto batches = rest_of_epoch(*loader);
        for (const Order& batch : batches) samples += static_cast<int64_t>(batch.size());
        EXPECT_EQ(static_cast<int64_t>(batches.size()), loader->batches());
        EXPECT_EQ(samples, loader->samples());
        EXPECT_EQ(samples, drop_last ? size - size % batch_size : size);
      }
    }
  }
}

TEST(LoaderTest, NextBeforeStartIsEpochZero) {
  const auto loader = shuffled(10, {.batch_size = 10});
  EXPECT_EQ(loader->epoch(), 0);
  EXPECT_EQ(numbers(*loader->next()), RandomSampler(10, 7).indices(0));
}

TEST(LoaderTest, AfterTheEndNothingComesUntilStart) {
  const auto loader = in_order(4, {.batch_size = 2});
  rest_of_epoch(*loader);
  EXPECT_EQ(loader->position(), 2);
  EXPECT_FALSE(loader->next().has_value());
  EXPECT_FALSE(loader->next().has_value());
  loader->start(1);
  EXPECT_THAT(rest_of_epoch(*loader), SizeIs(2));
}

TEST(LoaderTest, EpochsHaveTheSamplersOrdersAndRepeat) {
  const auto loader = shuffled(20, {.batch_size = 20});
  const RandomSampler sampler(20, 7);
  for (const int64_t epoch : {0, 1, 2, 1, 5}) {
    loader->start(epoch);
    EXPECT_EQ(numbers(*loader->next()), sampler.indices(epoch));
  }
}

TEST(LoaderTest, StartIsLegalInTheMiddleOfAnEpochAndAtAnyBatch) {
  const auto loader = in_order(10, {.batch_size = 2});
  loader->next();
  loader->start(0, 3);
  EXPECT_EQ(loader->position(), 3);
  EXPECT_THAT(rest_of_epoch(*loader), ElementsAre(Order{6, 7}, Order{8, 9}));
  loader->start(0, 5);
  EXPECT_FALSE(loader->next().has_value());
}

TEST(LoaderTest, StartOutOfRangeSaysWhatIsAllowedAndChangesNothing) {
  const auto loader = in_order(10, {.batch_size = 2});
  loader->next();
  EXPECT_EQ(message_of<ValueError>([&] { loader->start(0, 6); }),
            "loader: got batch 6 to start at, expected 0 to 5");
  EXPECT_THROW(loader->start(1, -1), ValueError);
  EXPECT_EQ(message_of<ValueError>([&] { loader->start(-1); }),
            "loader: got epoch -1, expected 0 or more");
  EXPECT_EQ(loader->epoch(), 0);
  EXPECT_EQ(numbers(*loader->next()), (Order{2, 3}));
}

TEST(LoaderTest, BatchesAreTheCallersToKeep) {
  const auto loader = in_order(6, {.batch_size = 2});
  std::vector<Batch> kept;
  for (int epoch = 0; epoch < 2; ++epoch) {
    loader->start(epoch);
    while (auto batch = loader->next()) kept.push_back(std::move(*batch));
  }
  EXPECT_EQ(numbers(kept[0]), (Order{0, 1}));
  kept[0].data[0].tensor().fill_(9);
  EXPECT_EQ(numbers(kept[3]), (Order{0, 1}));
}

TEST(LoaderTest, GlobalGeneratorStaysAsItWas) {
  const auto state = [] { return at::globalContext().defaultGenerator(at::kCPU).get_state(); };
  const at::Tensor before = state();
  const auto loader = shuffled(1000, {.batch_size = 10});
  rest_of_epoch(*loader);
  loader->start(1);
  rest_of_epoch(*loader);
  EXPECT_TRUE(at::equal(state(), before));
}

TEST(LoaderTest, AFailingBatchKeepsThePosition) {
  class Failing : public Dataset {
   public:
    int64_t size() const override { return 6; }
    Tree get(int64_t index) const override {
      if (index == 3) throw std::runtime_error("unreadable");
      return Tree::List{at::zeros({}, at::kLong).add(index)};
    }
  };
  const auto loader = make_loader(std::make_shared<Failing>(),
                                  std::make_shared<SequentialSampler>(6), {.batch_size = 2});
  EXPECT_EQ(numbers(*loader->next()), (Order{0, 1}));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(message_of<SampleError>([&] { loader->next(); }), "sample 3: unreadable");
    EXPECT_EQ(loader->position(), 1);
  }
  loader->start(0, 2);
  EXPECT_EQ(numbers(*loader->next()), (Order{4, 5}));
}

TEST(LoaderTest, SettingsThatCannotWorkAreRefusedAtConstruction) {
  const auto message = [](std::shared_ptr<const Dataset> dataset,
                          std::shared_ptr<const Sampler> sampler, LoaderOptions options) {
    return message_of<ValueError>([&] { make_loader(dataset, sampler, options); });
  };
  const auto dataset = counting_dataset(3);
  const auto sampler = std::make_shared<SequentialSampler>(3);
  EXPECT_EQ(message(nullptr, sampler, {}), "loader: the dataset is null");
  EXPECT_EQ(message(dataset, nullptr, {}), "loader: the sampler is null");
  EXPECT_EQ(message(dataset, sampler, {.batch_size = 0}),
            "loader: got batch size 0, expected at least 1");
  EXPECT_THAT(message(dataset, std::make_shared<SequentialSampler>(0), {}), HasSubstr("no batch"));
  EXPECT_EQ(
      message(dataset, sampler, {.batch_size = 4, .drop_last = true}),
      "loader: an epoch would have no batch: 3 samples do not fill one batch of 4 and drop_last "
      "is on; lower the batch size or switch drop_last off");
  EXPECT_EQ(message(dataset, std::make_shared<SequentialSampler>(5), {}),
            "loader: the sampler gave index 3 at place 3 of epoch 0, expected 0 to 2: build the "
            "sampler with the dataset's size");
  EXPECT_THAT(message(dataset, std::make_shared<FixedSampler>(Order{0, -1}), {}),
              HasSubstr("index -1 at place 1"));
  EXPECT_THAT(message(dataset, std::make_shared<FixedSampler>(Order{0, 1}, 3), {}),
              HasSubstr("gave 2 indices for epoch 0, expected its size, 3"));
}

TEST(LoaderTest, SamplerMayRepeatAndLeaveOutSamples) {
  const auto loader = make_loader(
      counting_dataset(3), std::make_shared<FixedSampler>(Order{2, 2, 0, 2}), {.batch_size = 3});
  EXPECT_THAT(rest_of_epoch(*loader), ElementsAre(Order{2, 2, 0}, Order{2}));
}

TEST(LoaderStateTest, ResumedRunEqualsAnUnbrokenOne) {
  const LoaderOptions options{.batch_size = 10};
  for (int64_t consumed = 0; consumed <= 10; ++consumed) {
    const auto unbroken = shuffled(100, options);
    unbroken->start(2);
    for (int64_t i = 0; i < consumed; ++i) unbroken->next();
    const auto resumed = shuffled(100, options);
    resumed->load_state_dict(unbroken->state_dict());
    EXPECT_EQ(resumed->epoch(), 2);
    EXPECT_EQ(resumed->position(), consumed);
    for (const int64_t epoch : {3, 4, 5}) {
      EXPECT_EQ(rest_of_epoch(*resumed), rest_of_epoch(*unbroken));
      resumed->start(epoch);
      unbroken->start(epoch);
    }
  }
}

TEST(LoaderStateTest, StateOfAFreshLoaderIsTheStartOfEpochZero) {
  const Tree state = shuffled(10, {.batch_size = 2})->state_dict();
  EXPECT_EQ(state.at("epoch").integer(), 0);
  EXPECT_EQ(state.at("position").integer(), 0);
}

TEST(LoaderStateTest, ChangedSettingsAreAllNamedWithBothValues) {
  const Tree state = shuffled(100, {.batch_size = 10})->state_dict();
  const auto other = shuffled(90, {.batch_size = 20, .drop_last = true});
  EXPECT_THAT(message_of<ValueError>([&] { other->load_state_dict(state); }),
              AllOf(HasSubstr("batch_size was 10 when the state was saved and is 20 here"),
                    HasSubstr("drop_last was false when the state was saved and is true here"),
                    HasSubstr("dataset_size was 100 when the state was saved and is 90 here"),
                    HasSubstr("sampler_size was 100 when the state was saved and is 90 here")));
}

TEST(LoaderStateTest, ASamplerWithAnotherSeedIsRefused) {
  const Tree state = shuffled(100, {.batch_size = 10}, 7)->state_dict();
  const auto other = shuffled(100, {.batch_size = 10}, 8);
  EXPECT_THAT(message_of<ValueError>([&] { other->load_state_dict(state); }),
              HasSubstr("the sampler's order of epoch 0 is not the one the state was saved with"));
}

TEST(LoaderStateTest, DamagedStateIsRefusedWithEveryReasonAndChangesNothing) {
  const auto loader = shuffled(100, {.batch_size = 10});
  loader->start(3, 4);
  const Tree good = loader->state_dict();
  Tree bad = good;
  bad.dict()["position"] = 11;
  EXPECT_THAT(message_of<ValueError>([&] { loader->load_state_dict(bad); }),
              HasSubstr("position is 11, expected at most the 10 batches of an epoch"));
  bad.dict()["position"] = -1;
  bad.dict()["epoch"] = "three";
  bad.dict()["extra"] = 1;
  bad.dict().erase("batch_size");
  EXPECT_THAT(message_of<ValueError>([&] { loader->load_state_dict(bad); }),
              AllOf(HasSubstr("position is -1, expected an integer of at least 0"),
                    HasSubstr("epoch is a value of kind string, expected an integer"),
                    HasSubstr("batch_size is missing"), HasSubstr("extra is unexpected")));
  EXPECT_THROW(loader->load_state_dict(Tree()), ValueError);
  EXPECT_EQ(loader->epoch(), 3);
  EXPECT_EQ(loader->position(), 4);
  EXPECT_EQ(numbers(*loader->next()).front(), RandomSampler(100, 7).indices(3)[40]);
}

}  // namespace
}  // namespace bellows::data
