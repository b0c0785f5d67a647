// The JSON header of a safetensors file: reading with full validation, and writing. Needs no
// LibTorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::checkpoint {

/// The longest header that readers of the format accept.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
/// The key that holds the metadata instead of a tensor.
inline constexpr std::string_view kMetadataKey = "__metadata__";
/// The metadata's key for checksums: 16 hexadecimal digits for each tensor, in byte order of their
/// names.
inline constexpr const char* kChecksumKey = "bellows.xxh3";

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

/// Bits of one value of a type of the format; 0 for an unknown name.
int64_t dtype_bits(std::string_view dtype);
/// Place of a type in a file: types with a higher rank come first. -1 for an unknown name.
int dtype_rank(std::string_view dtype);

/// Parses and checks a header: JSON syntax and nesting, duplicate keys, types, shapes, and that the
/// offsets cover exactly `data_bytes`. Throws CorruptFileError for `path` that names the entry.
/// Memory used is proportional to the text.
Header parse_header(const std::filesystem::path& path, std::string_view text, uint64_t data_bytes);

/// A tensor's checksum: XXH3 of name, type, shape and the hashes of its blocks (digest.h), as
/// "name\\0F32\\0" "3,4\\0" and 8 little-endian bytes a block.
uint64_t checksum_of(const TensorEntry& entry, std::span<const uint64_t> blocks);

/// Takes the checksums out of the metadata, in the order of the entries; none where there are none.
/// Throws CorruptFileError where they are not as many as the tensors.
std::vector<uint64_t> take_checksums(const std::filesystem::path& path, Header& header);
/// Puts them, given in the order of the entries, into the metadata.
void put_checksums(Header& header, std::span<const uint64_t> checksums);

/// The header's text, padded with spaces to a multiple of 8 bytes. Throws ValueError for a name or
/// metadata that is not UTF-8, and for a header over kMaxHeaderBytes.
std::string format_header(const Header& header);

}  // namespace bellows::checkpoint
