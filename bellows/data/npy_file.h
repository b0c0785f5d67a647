// The header of a .npy file, checked. Without LibTorch, so that it can be fuzzed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace bellows::data {

struct NpyHeader {
  char kind = 'f';  // b, i, u, f, c
  size_t item_bytes = 4;
  bool big_endian = false;
  bool fortran = false;
  std::vector<int64_t> shape;
  size_t data_offset = 0;
};

/// Of a file's whole content; that it has the data that the header asks for, no more and no less,
/// is checked too. `path` is for messages. Throws as read_npy.
NpyHeader parse_npy(std::span<const std::byte> file, const std::filesystem::path& path);

}  // namespace bellows::data
