// The bytes of an IDX file, checked. Without LibTorch, so that it can be fuzzed; read_idx makes a
// tensor of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::data {

/// The type byte of an IDX file.
enum class IdxType : uint8_t {
  kUInt8 = 0x08,
  kInt8 = 0x09,
  kInt16 = 0x0B,
  kInt32 = 0x0C,
  kFloat32 = 0x0D,
  kFloat64 = 0x0E,
};
std::string_view idx_type_name(IdxType type);

struct IdxFile {
  /// The file that was read (with .gz where it was found so).
  std::filesystem::path path;
  IdxType type = IdxType::kUInt8;
  /// 1 to 64 sizes; one may be 0.
  std::vector<int64_t> shape;
  /// The elements in row-major order and the machine's byte order.
  std::vector<std::byte> bytes;
};

/// "2x28x28".
std::string shape_text(const std::vector<int64_t>& shape);

/// Reads `path`, or `path`.gz; compressed or not is seen by the content. Throws as read_idx.
/// Memory: the data once (while a compressed file is read, up to twice), and never more than in
/// proportion to what the file really holds, whatever its header claims.
IdxFile read_idx_file(const std::filesystem::path& path);

}  // namespace bellows::data
