// Batches on a device ahead of time, on simulated devices.
#include "bellows/data/device_loader.h"

#include <gmock/gmock.h>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/device/memory.h"
#include "bellows/device/move.h"
#include "bellows/device/sim.h"
#include "bellows/device/stream.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSamples = 50, kBatch = 8, kWidth = 300;

// Sample i is a row of the number i, and i.
class Rows : public Dataset {
 public:
  explicit Rows(int64_t bad = -1) : bad_(bad) {}
  int64_t size() const override { return kSamples; }
  Tree get(int64_t index) const override {
    if (index == bad_) throw std::runtime_error("a scratch");
    return Tree::List{at::full({kWidth}, static_cast<double>(index)), index};
  }

 private:
  int64_t bad_;
};

class DeviceLoaderTest : public ::testing::TestWithParam<int64_t> {
 protected:
  c10::Device device_ = sim::device(1);

  std::unique_ptr<Loader> host(int64_t bad = -1, int64_t workers = GetParam()) const {
    return make_loader(
        std::make_shared<Rows>(bad), std::make_shared<RandomSampler>(kSamples, 3),
        {.batch_size = kBatch, .workers = workers, .memory = pinned_memory(device_)});
  }
  std::unique_ptr<Loader> there(int64_t bad = -1, int64_t ahead = 1) const {
    return to_device(host(bad), device_, {.ahead = ahead});
  }
  static void expect_same(const Batch& expected, const Batch& got, c10::Device device) {
    EXPECT_EQ(got.samples, expected.samples);
    for (const size_t i : {0, 1}) {
      EXPECT_EQ(got.data[i].tensor().device(), device);
      EXPECT_TRUE(at::equal(got.data[i].tensor().cpu(), expected.data[i].tensor()));
    }
  }
};

TEST_P(DeviceLoaderTest, GivesTheLoadersBatchesThere) {
  for (const int64_t ahead : {1, 3, 100}) {
    const auto expected = host(), got = there(-1, ahead);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      expected->start(epoch);
      got->start(epoch);
      while (const auto batch = expected->next()) {
        EXPECT_EQ(got->position() + 1, expected->position());
        const auto other = got->next();
        ASSERT_TRUE(other);
        expect_same(*batch, *other, device_);
        EXPECT_EQ(got->position(), expected->position());
        EXPECT_EQ(got->epoch(), epoch);
      }
      EXPECT_FALSE(got->next());
    }
  }
}

TEST_P(DeviceLoaderTest, TheNextBatchIsOnItsWayWhenOneIsHandedOut) {
  const auto loader = there();
  const auto before = memory_stats(device_).allocated;
  const auto batch = loader->next();
  const auto bytes = kBatch * (kWidth + 2) * 4;
  EXPECT_GE(memory_stats(device_).allocated - before, 2 * bytes);
}

TEST_P(DeviceLoaderTest, BatchesStayRightWhileMemoryIsUsedAgain) {
  const auto loader = there();
  const Stream other = Stream::from_pool(device_);
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    loader->start(epoch);
    double sum = 0;
    while (auto batch = loader->next()) {
      const StreamGuard on(other);  // a consumer that works on a stream of its own
      Event handed(device_);
      handed.record(Stream::default_of(device_));
      other.wait(handed);
      const at::Tensor rows = std::move(batch->data)[0].tensor();
      const at::Tensor copy = rows.clone();
      batch.reset();
      sum += copy.sum().item<double>() / kWidth;
    }
    EXPECT_EQ(sum, kSamples * (kSamples - 1) / 2);
  }
}

TEST_P(DeviceLoaderTest, AStateCountsWhatWasHandedOut) {
  for (int64_t taken = 0; taken <= 6; ++taken) {
    const auto first = there(-1, 2), second = there(-1, 2), plain = host();
    first->start(4);
    for (int64_t i = 0; i < taken; ++i) first->next();
    const Tree state = first->state_dict();
    second->load_state_dict(state);
    plain->load_state_dict(state);  // the loader's own
    EXPECT_EQ(second->position(), taken);
    while (const auto batch = first->next()) {
      expect_same(*plain->next(), *batch, device_);
      expect_same({bellows::to(batch->data, c10::Device(c10::kCPU)), batch->samples},
                  *second->next(), device_);
    }
    EXPECT_FALSE(second->next());
  }
}

TEST_P(DeviceLoaderTest, AnErrorComesWithItsBatchAndNotBefore) {
  const auto order = RandomSampler(kSamples, 3).indices(0);
  const auto loader = there(/*bad=*/order[2 * kBatch + 1], /*ahead=*/5);
  EXPECT_TRUE(loader->next());
  EXPECT_TRUE(loader->next());
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_THAT(test::message_of<SampleError>([&] { loader->next(); }), HasSubstr("a scratch"));
    EXPECT_EQ(loader->position(), 2);
  }
  loader->start(0, 3);
  EXPECT_EQ(loader->next()->data[1].tensor()[0].item<int64_t>(), order[3 * kBatch]);
}

TEST_P(DeviceLoaderTest, AFullDeviceIsTriedAgainWhenTheBatchIsAskedFor) {
  const auto expected = host(), loader = there();
  empty_cache(device_);
  const auto free = sim::memory_limit() - memory_stats(device_).allocated;
  at::Tensor hog = at::empty({free - 15 * 1024}, at::device(device_).dtype(at::kByte));  // one fits
  expect_same(*expected->next(), *loader->next(), device_);
  EXPECT_EQ(loader->position(), 1);
  expect_same(*expected->next(), *loader->next(), device_);
  const auto held = loader->next();
  ASSERT_TRUE(held);
  EXPECT_THROW(loader->next(), c10::OutOfMemoryError);
  EXPECT_EQ(loader->position(), 3);
  EXPECT_EQ(loader->epoch(), 0);
  hog.reset();
  expect_same(*expected->next(), *held, device_);
  while (const auto batch = expected->next()) expect_same(*batch, *loader->next(), device_);
  EXPECT_FALSE(loader->next());
}

TEST_P(DeviceLoaderTest, MayBeLeftAtAnyMoment) {
  for (int64_t taken = 0; taken < 4; ++taken) {
    const auto loader = there(-1, 2);
    for (int64_t i = 0; i < taken; ++i) loader->next();
    loader->start(1, 2);
    loader->next();
  }
  synchronize(device_);
}

INSTANTIATE_TEST_SUITE_P(Workers, DeviceLoaderTest, ::testing::Values(0, 3));

TEST(DeviceLoader, ForTheCpuItIsTheLoaderItself) {
  auto loader = make_loader(std::make_shared<Rows>(), std::make_shared<SequentialSampler>(kSamples),
                            {.batch_size = kBatch});
  const Loader* same = loader.get();
  EXPECT_EQ(to_device(std::move(loader), c10::Device(c10::kCPU)).get(), same);
}

TEST(DeviceLoader, RefusesWhatItCannotUse) {
  const c10::Device device = sim::device(0);
  EXPECT_THROW(to_device(nullptr, device), ValueError);
  const auto make = [] {
    return make_loader(std::make_shared<Rows>(), std::make_shared<SequentialSampler>(kSamples), {});
  };
  EXPECT_THROW(to_device(make(), device, {.ahead = 0}), ValueError);
  EXPECT_THROW(to_device(make(), c10::Device(c10::kXPU, 0)), EnvironmentError);
}

TEST(DeviceLoader, PinnedMemoryIsOfTheDevicesKind) {
  EXPECT_EQ(pinned_memory(c10::Device(c10::kCPU)), nullptr);
  EXPECT_THROW(pinned_memory(c10::Device(c10::kXPU, 0)), EnvironmentError);
  const auto loader =
      make_loader(std::make_shared<Rows>(), std::make_shared<SequentialSampler>(kSamples),
                  {.batch_size = kBatch, .memory = pinned_memory(sim::device(0))});
  EXPECT_TRUE(loader->next()->data[0].tensor().is_pinned());
}

}  // namespace
}  // namespace bellows::data
