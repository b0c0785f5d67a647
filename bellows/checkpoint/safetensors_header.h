// The JSON header of a safetensors file: reading with full validation, and writing. Needs no
// LibTorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::checkpoint {

/// The longest header that readers of the format accept.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
/// The key that holds the metadata instead of a tensor.
inline constexpr std::string_view kMetadataKey = "__metadata__";

/// One tensor of a file. Offsets count from the first byte after the header.
struct TensorEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Header {
  std::vector<TensorEntry> entries;  // in order of offset, without holes or overlap
  std::map<std::string, std::string> metadata;
};

/// Bytes of one element of a type of the format; 0 for an unknown name.
int64_t dtype_size(std::string_view dtype);
/// Place of a type in a file: types with a higher rank come first. -1 for an unknown name.
int dtype_rank(std::string_view dtype);

/// Parses and checks a header: JSON syntax and nesting, duplicate keys, types, shapes, and that the
/// offsets cover exactly `data_bytes`. Throws CorruptFileError for `path` that names the entry.
/// Memory used is proportional to the text.
Header parse_header(const std::filesystem::path& path, std::string_view text, uint64_t data_bytes);

/// The header's text, padded with spaces to a multiple of 8 bytes. Throws ValueError for a name or
/// metadata that is not UTF-8, and for a header over kMaxHeaderBytes.
std::string format_header(const Header& header);

}  // namespace bellows::checkpoint
