// Bytes in sequence from a file, gzip-compressed or not. Without LibTorch, for readers that are
// fuzzed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace bellows::data {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `out` from its front; returns how many bytes came, fewer only at the end or at damage.
  virtual size_t read(std::span<std::byte> out) = 0;
  virtual bool compressed() const = 0;
  /// No more bytes than this can come in all: the file's size (then all of them should come), or,
  /// where it is compressed, what deflate can make of it at best. What a header claims is to be
  /// checked against it before anything is allocated.
  virtual uint64_t most_bytes() const = 0;
  /// Why the bytes ended before their time, as the rest of a sentence; empty when they did not.
  virtual std::string defect() const { return {}; }
};

/// Opens `path`, or `path`.gz where `path` does not exist. Whether it is compressed is seen by its
/// first two bytes, not by its name. Throws FileError (ENOENT when neither exists), and
/// EnvironmentError for a file that is a pipe or a device; `read` throws FileError.
struct OpenedFile {
  std::filesystem::path path;
  std::unique_ptr<ByteSource> bytes;
};
OpenedFile open_maybe_gzip(const std::filesystem::path& path);

/// What gzip members one after the other hold, checksums verified.
std::unique_ptr<ByteSource> gunzip(std::unique_ptr<ByteSource> compressed);

}  // namespace bellows::data
