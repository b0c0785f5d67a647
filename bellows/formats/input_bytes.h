// Bytes of a file, read where they are wanted: what the parsers of file formats take, so that they
// can be fuzzed from memory. Needs no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace bellows::formats {

class InputBytes {
 public:
  explicit InputBytes(std::filesystem::path path) : path_(std::move(path)) {}
  virtual ~InputBytes() = default;
  InputBytes(const InputBytes&) = delete;
  InputBytes& operator=(const InputBytes&) = delete;

  /// For messages.
  const std::filesystem::path& path() const { return path_; }
  virtual uint64_t size() const = 0;
  /// Fills `bytes` from `offset` on. Throws CorruptFileError where the file ends before, FileError.
  /// Any thread.
  virtual void read(uint64_t offset, std::span<std::byte> bytes) const = 0;

  /// `count` bytes as text; they must be there before any memory is taken.
  std::string text(uint64_t offset, uint64_t count) const;

 protected:
  /// Throws CorruptFileError unless all of it is there.
  void check(uint64_t offset, uint64_t count) const;

 private:
  std::filesystem::path path_;
};

/// A regular file, read with pread: one that is cut meanwhile is an error, not a signal.
class InputFile final : public InputBytes {
 public:
  /// Throws FileError (absent, a directory), EnvironmentError for a pipe or a device.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile() override;
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> bytes) const override;

  /// The whole file as memory that can be written without changing the file; lives as long as the
  /// pointer. Null for an empty file. A file that is cut while it is mapped ends the process with
  /// SIGBUS: replace files by renaming. Throws FileError.
  std::shared_ptr<std::byte> map() const;

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// Memory that must live as long as this.
class InputMemory final : public InputBytes {
 public:
  InputMemory(std::span<const std::byte> bytes, const std::filesystem::path& name)
      : InputBytes(name), bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> bytes) const override;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace bellows::formats
