// A file's bytes as memory, read from disk when they are touched. Without LibTorch.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace bellows::data {

/// Read-only, private mapping of a regular file. A file that is cut while it is mapped ends the
/// process with SIGBUS when the missing part is touched: replace files by renaming. Move-only.
class MappedFile {
 public:
  /// Throws FileError; EnvironmentError for a pipe or a device.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;  // null for an empty file
  size_t size_ = 0;
};

}  // namespace bellows::data
