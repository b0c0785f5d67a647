#include "bellows/data/dataset.h"

#include <array>
#include <functional>
#include <gmock/gmock.h>
#include <stdexcept>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;

// Samples given by a function.
class FunctionDataset : public Dataset {
 public:
  FunctionDataset(int64_t size, std::function<Tree(int64_t)> sample)
      : size_(size), sample_(std::move(sample)) {}
  int64_t size() const override { return size_; }
  Tree get(int64_t index) const override { return sample_(index); }

 private:
  int64_t size_;
  std::function<Tree(int64_t)> sample_;
};

TEST(DatasetTest, DefaultBatchStacksSamplesInTheOrderAskedFor) {
  const FunctionDataset dataset(10, [](int64_t index) {
    return Tree::List{at::full({2, 3}, static_cast<double>(index)), index};
  });
  const Tree batch = dataset.get_batch(std::array<int64_t, 3>{7, 0, 7});
  const at::Tensor expected =
      at::stack({at::full({2, 3}, 7.0), at::full({2, 3}, 0.0), at::full({2, 3}, 7.0)});
  EXPECT_TRUE(at::equal(batch[0].tensor(), expected));
  EXPECT_TRUE(at::equal(batch[1].tensor(),
                        at::arange(3).mul(0).add(7).index_fill(0, at::full({1}, 1, at::kLong), 0)));
}

TEST(DatasetTest, FailingSampleKeepsItsMessageAndNamesItsIndex) {
  const FunctionDataset dataset(20, [](int64_t index) -> Tree {
    if (index == 13) throw std::runtime_error("the image is unreadable");
    return at::zeros({1});
  });
  const std::array<int64_t, 3> indices = {2, 13, 4};
  try {
    dataset.get_batch(indices);
    FAIL() << "expected SampleError";
  } catch (const SampleError& error) {
    EXPECT_EQ(error.index(), 13);
    EXPECT_STREQ(error.what(), "sample 13: the image is unreadable");
    EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
  }
}

TEST(DatasetTest, FailureInsideLibTorchIsToldWithoutItsStack) {
  const FunctionDataset dataset(3,
                                [](int64_t) -> Tree { return at::zeros({2}).add(at::zeros({3})); });
  const std::string message =
      message_of<SampleError>([&] { dataset.get_batch(std::array<int64_t, 1>{1}); });
  EXPECT_THAT(message, HasSubstr("sample 1: The size of tensor a (2) must match"));
  EXPECT_THAT(message, Not(HasSubstr("frame #")));
}

TEST(DatasetTest, IndexOutOfRangeIsRefusedBeforeAnySampleIsRead) {
  int reads = 0;
  const FunctionDataset dataset(5, [&](int64_t) {
    ++reads;
    return at::zeros({1});
  });
  EXPECT_EQ(message_of<ValueError>([&] {
              dataset.get_batch(std::array<int64_t, 3>{1, 5, -1});
            }),
            "dataset: index 5 (place 1 of 3) is out of range, expected 0 to 4");
  EXPECT_THAT(message_of<ValueError>([&] { dataset.get_batch({}); }), HasSubstr("no indices"));
  EXPECT_EQ(reads, 0);
}

TEST(CollateTest, NumbersBecomeTensorsOfTheirTypeAndStringsAList) {
  const std::array<Tree, 2> samples = {
      Tree::Dict{{"i", 3}, {"d", 0.5}, {"b", true}, {"s", "one"}, {"l", Tree::List{1, "x"}}},
      Tree::Dict{{"i", 4}, {"d", 1.5}, {"b", false}, {"s", "two"}, {"l", Tree::List{2, "y"}}}};
  const Tree batch = collate(samples);
  EXPECT_EQ(batch.at("i").tensor().scalar_type(), at::kLong);
  EXPECT_EQ(batch.at("i").tensor()[1].item<int64_t>(), 4);
  EXPECT_EQ(batch.at("d").tensor().scalar_type(), at::kDouble);
  EXPECT_EQ(batch.at("d").tensor()[0].item<double>(), 0.5);
  EXPECT_EQ(batch.at("b").tensor().scalar_type(), at::kBool);
  EXPECT_TRUE(batch.at("b").tensor()[0].item<bool>());
  EXPECT_EQ(batch.at("s")[1].string(), "two");
  EXPECT_EQ(batch.at("l")[0].tensor()[1].item<int64_t>(), 2);
  EXPECT_EQ(batch.at("l")[1][0].string(), "x");
}

TEST(CollateTest, BatchSharesNoMemoryWithItsSamples) {
  const std::array<Tree, 1> samples = {at::zeros({2})};
  collate(samples).tensor().fill_(1);
  EXPECT_EQ(samples[0].tensor().sum().item<float>(), 0);
}

TEST(CollateTest, DifferenceNamesSampleEntryAndBothSides) {
  const auto message = [](Tree first, Tree second) {
    const std::array<Tree, 3> samples = {first, first, second};
    return message_of<ValueError>([&] { collate(samples); });
  };
  EXPECT_EQ(message(Tree::Dict{{"a", Tree::List{at::zeros({1}), at::zeros({2, 3})}}},
                    Tree::Dict{{"a", Tree::List{at::zeros({1}), at::zeros({2, 4})}}}),
            "collate: entry 'a.1' of sample 2 of the batch has shape [2, 4], expected shape [2, 3] "
            "as in sample 0: samples of one batch must have the same structure");
  EXPECT_THAT(message(at::zeros({1}), at::zeros({1}, at::kLong)),
              HasSubstr("sample 2 of the batch has type Long, expected type Float"));
  EXPECT_THAT(message(1, 1.0), HasSubstr("a value of kind double, expected a value of kind int"));
  EXPECT_THAT(message(Tree::List{1}, Tree::List{1, 2}),
              HasSubstr("has length 2, expected length 1"));
  EXPECT_THAT(message(Tree::Dict{{"x", 1}}, Tree::Dict{{"y", 1}}),
              HasSubstr("has keys {y}, expected keys {x}"));
  EXPECT_THAT(message(Tree(), Tree()), HasSubstr("has no value"));
  EXPECT_THAT(message(at::Tensor(), at::Tensor()), HasSubstr("undefined tensor"));
}

TEST(CollateTest, NoSamplesIsAnError) {
  EXPECT_THAT(message_of<ValueError>([] { collate({}); }), HasSubstr("no samples"));
}

}  // namespace
}  // namespace bellows::data
