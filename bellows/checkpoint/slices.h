// Tensors that lie in slices, in several files of a checkpoint, put together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "bellows/checkpoint/manifest.h"
#include "bellows/tree/tree.h"

namespace bellows::checkpoint {

/// Takes tensors as they are read; copies each slice into its whole tensor.
class SliceAssembly {
 public:
  /// `manifest` is named in errors; `sliced` must outlive the object. A tensor larger than
  /// `most_bytes`, the size of all files, is refused before it is allocated.
  SliceAssembly(std::filesystem::path manifest, const std::map<std::string, SlicedTensor>& sliced,
                uint64_t most_bytes);

  /// Whether the tensor `name` of `file` is a slice; then it has been copied. Throws
  /// CorruptFileError where it does not lie within its whole.
  bool take(const std::string& file, const std::string& name, const at::Tensor& tensor);

  /// The whole tensors. Throws CorruptFileError where a slice is missing, or slices overlap or do
  /// not cover their tensor.
  NamedTensors finish();

 private:
  struct Whole {
    at::Tensor tensor;
    std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> boxes;  // begin, end
  };
  [[noreturn]] void fail(const std::string& name, const std::string& what) const;

  std::filesystem::path manifest_;
  const std::map<std::string, SlicedTensor>& sliced_;
  uint64_t most_bytes_;
  std::map<std::string, Whole> wholes_;
};

}  // namespace bellows::checkpoint
