// One safetensors file, its tensors by name: reads or maps what is asked for and no more.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "bellows/checkpoint/safetensors.h"
#include "bellows/checkpoint/safetensors_header.h"
#include "bellows/tree/tree.h"

namespace bellows::checkpoint {

/// Where a tensor's bytes lie.
enum class Memory {
  own,     // read now, by as many threads as LibTorch uses, and compared with the checksum
  mapped,  // the file's pages, read when they are touched; not compared
};

/// A handle: copies share the open file. Any thread may use it.
class SafetensorsFile {
 public:
  /// Reads and validates the header against the file's size. Throws FileError, CorruptFileError,
  /// EnvironmentError for a pipe or a device. With Checksums::no, those of the file are ignored:
  /// for a file whose tensors were changed by a program that copied its metadata.
  explicit SafetensorsFile(const std::filesystem::path& path, Checksums checksums = Checksums::yes);

  const std::filesystem::path& path() const;
  /// In order of their offsets. Shapes are the file's: LibTorch's tensors of type F4, which pack
  /// two values, have half the last dimension.
  const std::vector<TensorEntry>& entries() const;
  /// Without the checksums.
  const Metadata& metadata() const;
  bool contains(std::string_view name) const;
  /// Throws ValueError with the nearest name.
  const TensorEntry& entry(std::string_view name) const;

  /// One tensor, on the CPU. Mapped tensors keep the map alive, also after this object and the
  /// file's name are gone; writing to them changes neither the file nor the maps of other objects.
  /// Those of this object and its copies are the same memory each time, as in Python. A tensor that
  /// its file does not align for its type is read instead. Throws ValueError (no such name, a type
  /// that LibTorch lacks), FileError, CorruptFileError naming the tensor.
  at::Tensor tensor(std::string_view name, Memory memory = Memory::own) const;
  /// All of them, in order of their offsets.
  NamedTensors tensors(Memory memory = Memory::own) const;

  bool has_checksums() const;
  /// Reads everything and compares it with the checksums, where there are any. Throws
  /// CorruptFileError naming the first damaged tensor, FileError.
  void verify() const;
  /// The same of one tensor.
  void verify(std::string_view name) const;
  /// Of the header's text. Where it is the same and both have checksums, so are all tensors.
  uint64_t header_hash() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace bellows::checkpoint
