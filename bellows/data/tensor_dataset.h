// Datasets whose samples lie in tensors in memory.
#pragma once

#include <vector>

#include "bellows/data/dataset.h"

namespace bellows::data {

/// Sample i is the list of the i-th slices of the given tensors (as
/// torch.utils.data.TensorDataset), copied. A batch is one new tensor per given tensor, its rows
/// copied by index; gradients do not flow through.
class TensorDataset : public BatchDataset {
 public:
  /// Dense tensors on the CPU with equal, non-zero first dimension; else ValueError with the sizes.
  /// Contiguous tensors are shared, not copied: changing them afterwards changes the dataset.
  explicit TensorDataset(std::vector<at::Tensor> tensors);
  int64_t size() const override { return size_; }
  Tree get(int64_t index) const override;
  Tree read_batch(std::span<const int64_t> indices, const Pass& pass,
                  BatchMemory& memory) const override;
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
  int64_t size_;
};

}  // namespace bellows::data
