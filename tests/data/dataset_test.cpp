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

}  // namespace
}  // namespace bellows::data
