// A regular file open for reading, from several threads, or as memory. Needs no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace bellows::checkpoint {

class InputFile {
 public:
  /// Throws FileError (a directory too), EnvironmentError for a pipe or a device.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }

  /// Fills `bytes` from `offset` on. Any thread. Throws FileError; CorruptFileError where the file
  /// has become shorter.
  void read(uint64_t offset, std::span<std::byte> bytes) const;

  /// The whole file as memory that can be written without changing the file; lives as long as the
  /// pointer. Null for an empty file. A file that is cut while it is mapped ends the process with
  /// SIGBUS: replace files by renaming. Throws FileError.
  std::shared_ptr<std::byte> map() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace bellows::checkpoint
