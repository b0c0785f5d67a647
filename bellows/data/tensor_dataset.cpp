#include "bellows/data/tensor_dataset.h"

#include <cstring>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

void check_tensor(const at::Tensor& tensor, size_t position) {
  const auto fail = [&](const auto&... what) {
    throw ValueError(concat("TensorDataset: tensor ", position, " ", what...));
  };
  if (!tensor.defined()) fail("is undefined, expected one sample per row");
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided) {
    fail("is ", tensor.layout(), " on ", tensor.device(), ", expected a dense tensor on cpu");
  }
  if (tensor.dim() == 0) fail("is a scalar, expected a first dimension of samples");
  if (tensor.size(0) == 0) fail("has shape ", tensor.sizes(), ", expected at least one sample");
}

// A constant number of bytes lets the compiler turn the copy into one load and one store.
template <size_t kBytes>
void copy_rows_of(const char* from, std::span<const int64_t> indices, char* to) {
  for (const int64_t index : indices) {
    std::memcpy(to, from + static_cast<size_t>(index) * kBytes, kBytes);
    to += kBytes;
  }
}

// Rows lie far apart: the processor is told of the next one's first lines while it copies this one,
// and follows by itself from there.
void copy_large_rows(const char* from, size_t row_bytes, std::span<const int64_t> indices,
                     char* to) {
  constexpr size_t kLine = 64, kAhead = 4 * kLine;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (row_bytes >= kAhead && i + 1 < indices.size()) {
      const char* next = from + static_cast<size_t>(indices[i + 1]) * row_bytes;
      for (size_t byte = 0; byte < kAhead; byte += kLine) __builtin_prefetch(next + byte);
    }
    std::memcpy(to, from + static_cast<size_t>(indices[i]) * row_bytes, row_bytes);
    to += row_bytes;
  }
}

void copy_rows(const char* from, size_t row_bytes, std::span<const int64_t> indices, char* to) {
  switch (row_bytes) {
    case 0:
      return;
    case 1:
      return copy_rows_of<1>(from, indices, to);
    case 4:
      return copy_rows_of<4>(from, indices, to);
    case 8:
      return copy_rows_of<8>(from, indices, to);
    default:
      return copy_large_rows(from, row_bytes, indices, to);
  }
}

// In place of at::index_select, which starts LibTorch's threads for every batch: one thread that
// copies runs at memory speed, and loaders have threads of their own.
at::Tensor select_rows(const at::Tensor& tensor, std::span<const int64_t> indices,
                       BatchMemory& memory) {
  auto sizes = tensor.sizes().vec();
  const size_t row_bytes = tensor.nbytes() / static_cast<size_t>(sizes[0]);
  sizes[0] = static_cast<int64_t>(indices.size());
  at::Tensor result = memory.empty(sizes, tensor.scalar_type());
  copy_rows(static_cast<const char*>(tensor.const_data_ptr()), row_bytes, indices,
            static_cast<char*>(result.mutable_data_ptr()));
  return result;
}

}  // namespace

TensorDataset::TensorDataset(std::vector<at::Tensor> tensors) {
  if (tensors.empty()) throw ValueError("TensorDataset: got no tensors, expected at least one");
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_tensor(tensors[i], i);
    if (tensors[i].size(0) != tensors[0].size(0)) {
      throw ValueError(concat("TensorDataset: tensor ", i, " has ", tensors[i].size(0),
                              " samples and tensor 0 has ", tensors[0].size(0),
                              ", expected the same number (shapes ", tensors[i].sizes(), " and ",
                              tensors[0].sizes(), ")"));
    }
  }
  size_ = tensors[0].size(0);
  for (at::Tensor& tensor : tensors) {
    tensors_.push_back(tensor.detach().resolve_conj().resolve_neg().contiguous());
  }
}

Tree TensorDataset::get(int64_t index) const {
  check_indices({&index, 1}, size_);
  Tree::List sample;
  for (const at::Tensor& tensor : tensors_) sample.emplace_back(tensor.select(0, index).clone());
  return sample;
}

Tree TensorDataset::read_batch(std::span<const int64_t> indices, const Pass&,
                               BatchMemory& memory) const {
  check_indices(indices, size_);
  Tree::List batch;
  for (const at::Tensor& tensor : tensors_)
    batch.emplace_back(select_rows(tensor, indices, memory));
  return batch;
}

}  // namespace bellows::data
