// Samples in a tar shard, in WebDataset's layout: files next to each other whose names agree up to
// the first dot of the last part are one sample. Without LibTorch, so that it can be fuzzed.
// Source: https://github.com/webdataset/webdataset (README, "The WebDataset Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace bellows::data {

struct TarSample {
  /// The name up to the dot, with its folders.
  std::string key;
  /// The rest of the name, in small letters ("jpg", "seg.png") -> the file's bytes.
  std::map<std::string, std::string> parts;
};

/// Reads a shard from front to back; compressed ones (gzip, zstd, …) too. Every error is a
/// CorruptFileError with file, entry and what is wrong, or a FileError. Not thread-safe.
class TarFile {
 public:
  /// Parts larger than `most_bytes` are refused.
  explicit TarFile(const std::filesystem::path& path, int64_t most_bytes = int64_t{1} << 30);
  /// From memory, which must live as long as this; `name` is for messages.
  TarFile(std::span<const std::byte> bytes, const std::filesystem::path& name, int64_t most_bytes);
  ~TarFile();
  TarFile(const TarFile&) = delete;
  TarFile& operator=(const TarFile&) = delete;

  /// Nothing at the end.
  std::optional<TarSample> next();
  /// As `next`, without the bytes, which are skipped: whether there was a sample.
  bool skip();

 private:
  struct Archive;
  std::unique_ptr<Archive> archive_;
};

}  // namespace bellows::data
