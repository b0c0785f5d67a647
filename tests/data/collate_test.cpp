#include "bellows/data/collate.h"

#include <array>
#include <gmock/gmock.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;

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

TEST(CollateTest, TensorsOfAnyLayoutInMemoryAreStackedWithoutTheirGraph) {
  const at::Tensor base = at::arange(12, at::kFloat).view({3, 4});
  const std::array<Tree, 2> samples = {base.t(), base.t().contiguous().requires_grad_()};
  const at::Tensor batch = collate(samples).tensor();
  EXPECT_TRUE(at::equal(batch[0], base.t()));
  EXPECT_TRUE(at::equal(batch[1], base.t()));
  EXPECT_FALSE(batch.requires_grad());
}

TEST(CollateTest, EmptyTensorsAndScalarsAreStacked) {
  const std::array<Tree, 2> empty = {at::zeros({0, 3}), at::zeros({0, 3})};
  EXPECT_EQ(collate(empty).tensor().sizes(), (at::IntArrayRef{2, 0, 3}));
  const std::array<Tree, 2> scalars = {at::full({}, 3.0), at::full({}, 4.0)};
  EXPECT_TRUE(at::equal(collate(scalars).tensor(), at::arange(3, 5, at::kFloat)));
}

TEST(CollateTest, RaggedSamplesAreFilledUpAtTheEnds) {
  BatchMemory memory;
  const std::array<Tree, 3> samples = {Tree::List{at::ones({2, 1}), 1},
                                       Tree::List{at::full({1, 3}, 2.0), 2},
                                       Tree::List{at::zeros({0, 2}), 3}};
  const Tree batch = collate(samples, memory, {.pad = -1});
  const at::Tensor expected = at::full({3, 2, 3}, -1.0);
  expected[0].narrow(1, 0, 1).fill_(1);
  expected[1].narrow(0, 0, 1).fill_(2);
  EXPECT_TRUE(at::equal(batch[0].tensor(), expected));
  const std::array<Tree, 2> ranks = {at::ones({2}), at::ones({2, 1})};
  EXPECT_EQ(message_of<CollateError>([&] { collate(ranks, memory, {.pad = 0}); }),
            "collate: sample 1 of the batch has rank 2, expected rank 1 as in sample 0: samples of "
            "one batch must have the same structure");
}

TEST(CollateTest, ErrorKnowsThePlaceOfTheSample) {
  const std::array<Tree, 3> samples = {at::ones({2}), at::ones({2}), at::ones({3})};
  try {
    collate(samples);
    FAIL() << "no error";
  } catch (const CollateError& error) {
    EXPECT_EQ(error.position(), 2u);
  }
}

}  // namespace
}  // namespace bellows::data
