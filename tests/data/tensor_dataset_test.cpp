#include "bellows/data/tensor_dataset.h"

#include <array>
#include <gmock/gmock.h>
#include <random>

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;

std::vector<int64_t> some_indices(int64_t size, size_t count) {
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int64_t> pick(0, size - 1);
  std::vector<int64_t> indices(count);
  for (int64_t& index : indices) index = pick(random);
  return indices;
}

at::Tensor selected(const at::Tensor& tensor, std::vector<int64_t>& indices) {
  const auto count = static_cast<int64_t>(indices.size());
  return at::index_select(tensor, 0, at::from_blob(indices.data(), {count}, at::kLong));
}

TEST(TensorDatasetTest, BatchEqualsIndexSelectForEveryTypeAndRowSize) {
  std::vector<int64_t> indices = some_indices(50, 33);
  for (const at::ScalarType type : {at::kBool, at::kByte, at::kShort, at::kHalf, at::kFloat,
                                    at::kLong, at::kDouble, at::kComplexDouble}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{50}, {50, 1}, {50, 3}, {50, 0}, {50, 3, 32, 32}}) {
      const at::Tensor source = at::randint(0, 100, shape, at::kLong).to(type);
      const at::Tensor batch = TensorDataset({source}).get_batch(indices)[0].tensor();
      EXPECT_EQ(batch.scalar_type(), type);
      EXPECT_TRUE(at::equal(batch, selected(source, indices))) << type << " " << batch.sizes();
    }
  }
}

TEST(TensorDatasetTest, NonContiguousAndConjugateSourcesGiveTheirValues) {
  std::vector<int64_t> indices = some_indices(6, 9);
  const at::Tensor strided = at::arange(48, at::kFloat).view({2, 4, 6}).permute({2, 0, 1});
  const at::Tensor conjugate =
      at::complex(at::arange(6, at::kFloat), at::arange(6, at::kFloat)).conj();
  const Tree batch = TensorDataset({strided, conjugate}).get_batch(indices);
  EXPECT_TRUE(at::equal(batch[0].tensor(), selected(strided, indices)));
  EXPECT_TRUE(at::equal(batch[1].tensor(), selected(conjugate, indices).resolve_conj()));
}

TEST(TensorDatasetTest, SampleIsTheSliceOfEveryTensor) {
  const at::Tensor input = at::arange(12, at::kFloat).view({4, 3});
  const at::Tensor target = at::arange(4);
  const Tree sample = TensorDataset({input, target}).get(2);
  ASSERT_EQ(sample.list().size(), 2u);
  EXPECT_TRUE(at::equal(sample[0].tensor(), input[2]));
  EXPECT_TRUE(at::equal(sample[1].tensor(), target[2]));
  EXPECT_EQ(sample[1].tensor().dim(), 0);
}

TEST(TensorDatasetTest, WritingIntoASampleOrBatchLeavesTheDatasetAsItWas) {
  const TensorDataset dataset({at::zeros({4, 3})});
  const std::array<int64_t, 2> indices = {0, 1};
  const Tree kept = dataset.get_batch(indices);
  dataset.get(0)[0].tensor().fill_(1);
  dataset.get_batch(indices)[0].tensor().fill_(1);
  EXPECT_EQ(dataset.tensors()[0].sum().item<float>(), 0);
  EXPECT_EQ(kept[0].tensor().sum().item<float>(), 0);
}

TEST(TensorDatasetTest, ContiguousTensorsAreSharedNotCopied) {
  const at::Tensor tensor = at::zeros({4, 3});
  EXPECT_EQ(TensorDataset({tensor}).tensors()[0].data_ptr(), tensor.data_ptr());
}

TEST(TensorDatasetTest, IndexOutOfRangeIsNamedWithTheRange) {
  const TensorDataset dataset({at::zeros({4})});
  EXPECT_EQ(message_of<ValueError>([&] { dataset.get(4); }),
            "dataset: index 4 (place 0 of 1) is out of range, expected 0 to 3");
  EXPECT_THAT(message_of<ValueError>([&] {
                dataset.get_batch(std::array<int64_t, 2>{0, -1});
              }),
              HasSubstr("index -1 (place 1 of 2) is out of range, expected 0 to 3"));
  EXPECT_THROW(dataset.get_batch({}), ValueError);
}

TEST(TensorDatasetTest, TensorsThatMakeNoDatasetAreRefusedWithTheReason) {
  const auto message = [](std::vector<at::Tensor> tensors) {
    return message_of<ValueError>([&] { TensorDataset dataset(tensors); });
  };
  EXPECT_THAT(message({}), HasSubstr("no tensors"));
  EXPECT_THAT(message({at::zeros({2}), at::Tensor()}), HasSubstr("tensor 1 is undefined"));
  EXPECT_THAT(message({at::zeros({})}), HasSubstr("tensor 0 is a scalar"));
  EXPECT_THAT(message({at::zeros({0, 3})}),
              HasSubstr("shape [0, 3], expected at least one sample"));
  EXPECT_THAT(message({at::empty({2}, at::device(at::kMeta))}), HasSubstr("on meta"));
  EXPECT_THAT(message({at::ones({2, 2}).to_sparse()}), HasSubstr("Sparse on cpu"));
  EXPECT_THAT(message({at::zeros({3, 1}), at::zeros({2})}),
              HasSubstr("tensor 1 has 2 samples and tensor 0 has 3, expected the same number"));
}

}  // namespace
}  // namespace bellows::data
