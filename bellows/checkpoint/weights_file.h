// The tensors of any file that holds weights: what there is without reading it, and one at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bellows/formats/file_kind.h"
#include "bellows/tree/tree.h"

namespace bellows::checkpoint {

struct WeightEntry {
  std::string name;
  std::string type;  // as PyTorch names it: "float32"
  std::vector<int64_t> shape;
  int64_t bytes = 0;  // of its elements
};

/// Not thread-safe.
class WeightsFile {
 public:
  virtual ~WeightsFile() = default;
  formats::FileKind kind() const { return kind_; }
  /// In the file's order.
  const std::vector<WeightEntry>& entries() const { return entries_; }
  /// Throws ValueError for a name that comes twice ({"a.b": …, "a": {"b": …}}): by names alone such
  /// tensors cannot be told apart. `path`: for the message.
  void check_names(const std::filesystem::path& path) const;
  /// On the CPU. Tensors that shared memory share it again while one of them is alive.
  virtual at::Tensor read(size_t index) = 0;
  /// What the file says about itself, where its format has room for that (safetensors).
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Called with the bytes that have been checked and their whole number.
  using Progress = std::function<void(uint64_t done, uint64_t all)>;
  /// Reads all bytes and compares them with the checksums; names what is damaged. Formats without
  /// checksums have nothing to compare (has_checksums).
  virtual std::vector<std::string> damage(const Progress& progress) = 0;
  virtual bool has_checksums() const { return true; }

 protected:
  formats::FileKind kind_ = formats::FileKind::unknown;
  std::vector<WeightEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// A checkpoint directory (its model), a safetensors file, torch.save's files, LibTorch's archives
/// and TorchScript (whose code is not run). `select`: as of read_torch_file. Throws ValueError for
/// any other kind, with the right call; CorruptFileError, FileError.
std::unique_ptr<WeightsFile> open_weights_file(const std::filesystem::path& path,
                                               std::string_view select = {});

/// All of it, detached. Throws ValueError for a name that comes twice.
NamedTensors read_weights_file(const std::filesystem::path& path, std::string_view select = {});

}  // namespace bellows::checkpoint
