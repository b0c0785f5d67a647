#include <atomic>
#include <chrono>
#include <gmock/gmock.h>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "bellows/data/stream.h"
#include "tests/data/loader_support.h"

namespace bellows::data {
namespace {

using test::message_of;
using test::numbers_of;
using test::rest_of_epoch;
using ::testing::HasSubstr;
using Order = std::vector<int64_t>;
using Batches = std::vector<Order>;

// Record i of epoch e is 100 e + i; some cannot be decoded, and the stream may end too early.
class Counting : public StreamDataset {
 public:
  explicit Counting(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }

  std::unique_ptr<RecordReader> open(const Pass& pass, int64_t first) const override {
    class Reader : public RecordReader {
     public:
      Reader(const Counting& stream, int64_t epoch, int64_t next)
          : stream_(stream), epoch_(epoch), next_(next) {}
      std::optional<Record> next() override {
        EXPECT_FALSE(busy_.exchange(true)) << "two threads in one reader";
        const int64_t index = next_++;
        busy_ = false;
        if (index == stream_.ends_at) return std::nullopt;
        return Record{100 * epoch_ + index, index, "shard/" + std::to_string(index)};
      }

     private:
      const Counting& stream_;
      int64_t epoch_;
      int64_t next_;
      std::atomic<bool> busy_ = false;
    };
    ++opened;
    return std::make_unique<Reader>(*this, pass.epoch, first);
  }

  Tree decode(Record record, const Pass& pass) const override {
    while (record.index == slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (record.index == bad) throw std::runtime_error("cannot be decoded");
    at::Tensor value = at::full({}, record.data.integer(), at::kLong);
    if (random) value.fill_(pass.random(record.index).below(1 << 30));
    return Tree::List{value};
  }
  uint64_t order_hash(int64_t) const override { return 17; }

  std::atomic<int64_t> bad = -1;
  std::atomic<int64_t> slow = -1;
  int64_t ends_at = -1;
  bool random = false;
  mutable std::atomic<int> opened = 0;

 private:
  int64_t size_;
};

TEST(StreamLoaderTest, RecordsComeInTheStreamsOrderForAnyNumberOfWorkers) {
  const auto stream = std::make_shared<Counting>(50);
  stream->random = true;
  const auto reference = make_loader(stream, {.batch_size = 4, .seed = 9});
  EXPECT_EQ(reference->batches(), 13);
  EXPECT_EQ(reference->samples(), 50);
  for (const int64_t epoch : {0, 3}) {
    reference->start(epoch);
    const Batches expected = rest_of_epoch(*reference);
    EXPECT_EQ(expected.back().size(), 2u);
    for (const int64_t workers : {1, 2, 8}) {
      const auto loader = make_loader(stream, {.batch_size = 4, .workers = workers, .seed = 9});
      loader->start(epoch);
      EXPECT_EQ(rest_of_epoch(*loader), expected) << workers;
    }
  }
}

TEST(StreamLoaderTest, AnEpochOpensTheStreamOnce) {
  const auto stream = std::make_shared<Counting>(50);
  const auto loader = make_loader(stream, {.batch_size = 4, .drop_last = true, .workers = 3});
  EXPECT_EQ(rest_of_epoch(*loader).size(), 12u);
  loader->start(1);
  EXPECT_EQ(numbers_of(*loader->next()), (Order{100, 101, 102, 103}));
  EXPECT_EQ(stream->opened, 2);
}

TEST(StreamLoaderTest, ResumesAtAnyBatchWithAnyNumberOfWorkers) {
  const auto stream = std::make_shared<Counting>(22);
  for (int64_t consumed = 0; consumed <= 6; ++consumed) {
    const auto unbroken = make_loader(stream, {.batch_size = 4, .workers = 3});
    unbroken->start(2);
    for (int64_t i = 0; i < consumed; ++i) unbroken->next();
    const Tree state = unbroken->state_dict();
    const Batches expected = rest_of_epoch(*unbroken);
    for (const int64_t workers : {0, 2}) {
      const auto resumed = make_loader(stream, {.batch_size = 4, .workers = workers});
      resumed->load_state_dict(state);
      EXPECT_EQ(rest_of_epoch(*resumed), expected);
    }
  }
}

TEST(StreamLoaderTest, FirstReadyStateReadsPastWhatHasCome) {
  const auto stream = std::make_shared<Counting>(20);
  const auto loader = make_loader(
      stream,
      {.batch_size = 2, .workers = 2, .in_order = false, .timeout = std::chrono::seconds(20)});
  Tree state = loader->state_dict();
  state.dict()["position"] = 1;
  state.dict()["ahead"] = Tree::List{2, 3, 6};
  loader->load_state_dict(state);
  EXPECT_EQ(loader->position(), 4);
  auto batches = rest_of_epoch(*loader);
  std::sort(batches.begin(), batches.end());
  EXPECT_EQ(batches, (Batches{{2, 3}, {8, 9}, {10, 11}, {14, 15}, {16, 17}, {18, 19}}));
}

TEST(StreamLoaderTest, RecordThatCannotBeDecodedIsNamedOrSkippedAndReadAgain) {
  for (const int64_t workers : {0, 3}) {
    const auto stream = std::make_shared<Counting>(16);
    stream->bad = 5;
    const auto loader = make_loader(stream, {.batch_size = 4, .workers = workers});
    loader->next();
    EXPECT_EQ(message_of<SampleError>([&] { loader->next(); }),
              "sample 5 (shard/5): cannot be decoded");
    stream->bad = -1;
    EXPECT_EQ(rest_of_epoch(*loader), (Batches{{4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
    stream->bad = 5;
    const auto skipping =
        make_loader(stream, {.batch_size = 4, .workers = workers, .on_error = OnError::skip});
    skipping->next();
    EXPECT_EQ(numbers_of(*skipping->next()), (Order{4, 6, 7}));
    EXPECT_EQ(skipping->report().first_skipped.at(0).index, 5);
  }
}

TEST(StreamLoaderTest, TimeOutNamesTheRecordThatIsBeingDecoded) {
  const auto stream = std::make_shared<Counting>(16);
  stream->slow = 6;
  const auto loader = make_loader(
      stream, {.batch_size = 4, .workers = 2, .timeout = std::chrono::milliseconds(100)});
  loader->next();
  EXPECT_THAT(message_of<TimeoutError>([&] { loader->next(); }),
              ::testing::ContainsRegex("worker [01] reads batch 1, sample 6 \\(shard/6\\)"));
  stream->slow = -1;
  EXPECT_EQ(numbers_of(*loader->next()), (Order{4, 5, 6, 7}));
}

TEST(StreamLoaderTest, AStreamThatEndsEarlySaysHowManyRecordsCame) {
  for (const int64_t workers : {0, 2}) {
    const auto stream = std::make_shared<Counting>(16);
    stream->ends_at = 9;
    const auto loader = make_loader(stream, {.batch_size = 4, .workers = workers});
    loader->next();
    loader->next();
    EXPECT_EQ(message_of<EnvironmentError>([&] { loader->next(); }),
              "the stream ended after 9 records of epoch 0, expected 16");
    loader->start(0);
    EXPECT_EQ(numbers_of(*loader->next()), (Order{0, 1, 2, 3}));
  }
}

TEST(StreamLoaderTest, LeavingAtAnyMomentIsLegal) {
  const auto stream = std::make_shared<Counting>(100);
  const auto loader = make_loader(stream, {.batch_size = 3, .workers = 4});
  for (int taken = 0; taken < 12; ++taken) {
    loader->start(taken);
    for (int i = 0; i < taken; ++i) ASSERT_TRUE(loader->next());
  }
  loader->start(1, 33);
  EXPECT_EQ(rest_of_epoch(*loader), (Batches{{199}}));
}

}  // namespace
}  // namespace bellows::data
