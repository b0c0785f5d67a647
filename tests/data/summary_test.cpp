#include "bellows/data/summary.h"

#include <gmock/gmock.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/image.h"
#include "bellows/data/tar_stream.h"
#include "bellows/data/tensor_dataset.h"
#include "tests/data/image_files.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::picture;
using test::png_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Sample i has i + 1 numbers and class i % 3; each tenth cannot be read.
struct Ragged : Dataset {
  int64_t size() const override { return 45; }
  Tree get(int64_t index) const override {
    if (index % 10 == 9) throw CorruptFileError(source(index), "is damaged");
    return Tree::List{at::zeros({2, index + 1}), index % 3};
  }
  std::string source(int64_t index) const override { return "file-" + std::to_string(index); }
};

TEST(SummaryTest, CountsShapesClassesAndDamageForAnyNumberOfWorkers) {
  for (const int64_t workers : {0, 3}) {
    std::vector<int64_t> lengths;
    int64_t done = 0;
    Summarizer summarizer(
        {.workers = workers,
         .most_damaged = 3,
         .on_sample = [&](const Tree& sample) { lengths.push_back(sample[0].tensor().size(1)); },
         .on_progress =
             [&](int64_t now, int64_t all) {
               EXPECT_GT(now, done);
               EXPECT_EQ(all, 45);
               done = now;
             }});
    summarizer.add(std::make_shared<Ragged>());
    const Summary& summary = summarizer.summary();
    EXPECT_EQ(summary.samples, 41);
    EXPECT_EQ(done, 41);
    EXPECT_EQ(summary.damaged, 4);
    ASSERT_EQ(summary.first_damaged.size(), 3U);
    EXPECT_EQ(summary.first_damaged[1].index, 19);
    EXPECT_THAT(summary.first_damaged[1].reason, HasSubstr("file-19: is damaged"));
    EXPECT_THAT(summary.classes, ElementsAre(Pair(0, 13), Pair(1, 14), Pair(2, 14)));
    const FieldSummary& field = summary.fields.at("0");
    EXPECT_THAT(field.types, ElementsAre(Pair("float32", 41)));
    EXPECT_THAT(field.least, ElementsAre(2, 1));
    EXPECT_THAT(field.most, ElementsAre(2, 45));
    EXPECT_THAT(summary.fields.at("1").types, ElementsAre(Pair("integer", 41)));
    EXPECT_TRUE(std::is_sorted(lengths.begin(), lengths.end()));
  }
}

TEST(SummaryTest, TensorsInMemoryAreReadSampleBySample) {
  Summarizer summarizer({});
  summarizer.add(std::make_shared<TensorDataset>(
      std::vector<at::Tensor>{at::zeros({6, 3}, at::kByte), at::arange(6)}));
  EXPECT_EQ(summarizer.summary().samples, 6);
  EXPECT_THAT(summarizer.summary().fields.at("0").most, ElementsAre(3));
  EXPECT_EQ(summarizer.summary().classes.size(), 6U);
}

TEST(SummaryTest, ShardsThatEndEarlyAreDamagedAndTheOthersCounted) {
  const test::TemporaryFolder folder;
  const std::string whole = test::tar_bytes({{"a.png", png_bytes(picture(4, 5))},
                                             {"a.cls", "1"},
                                             {"b.png", png_bytes(picture(6, 5))},
                                             {"b.cls", "2"}});
  const auto good = folder.write("0.tar", whole);
  const auto bad = folder.write("1.tar", whole);
  const auto open = [](const std::filesystem::path& path) {
    return std::make_shared<TarStream>(std::vector{path}, TarOptions{});
  };
  const auto stream = open(bad);
  folder.write("1.tar", whole.substr(0, 1536));
  Summarizer summarizer({});
  summarizer.add(open(good));
  summarizer.add(stream);
  summarizer.add_damage("2.tar: cannot be opened");
  const Summary& summary = summarizer.summary();
  EXPECT_EQ(summary.samples, 2);
  EXPECT_EQ(summary.damaged, 2);
  EXPECT_EQ(summary.first_damaged[0].index, -1);
  EXPECT_THAT(summary.first_damaged[0].reason, HasSubstr("1.tar"));
  EXPECT_THAT(summary.classes, ElementsAre(Pair(1, 1), Pair(2, 1)));
  EXPECT_THAT(summary.fields.at("png").most, ElementsAre(3, 6, 5));
}

TEST(SummaryTest, AClassIsAWholeNumberAtTheEndOrUnderAName) {
  EXPECT_EQ(class_of(Tree::List{1.5, int64_t{3}}), 3);
  EXPECT_EQ(class_of(Tree::List{at::zeros({3}), at::arange(9)[4]}), 4);
  EXPECT_EQ(class_of(Tree::List{int64_t{3}}), -1);
  EXPECT_EQ(class_of(Tree::List{1.5, 2.5}), -1);
  EXPECT_EQ(class_of(Tree::Dict{{"label", 7}, {"other", 1}}), 7);
  EXPECT_EQ(class_of(Tree::Dict{{"other", 1}}), -1);
  EXPECT_EQ(class_of(at::zeros({3})), -1);
}

}  // namespace
}  // namespace bellows::data
