// The records of one CIFAR binary file, checked. Without LibTorch, so that it can be fuzzed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace bellows::data {

inline constexpr int64_t kCifarImageBytes = 3 * 32 * 32;

struct CifarFile {
  std::filesystem::path path;
  std::vector<uint8_t> labels;
  std::vector<uint8_t> images;  // kCifarImageBytes each
};

/// `label_bytes` 1 (CIFAR-10) or 2 (CIFAR-100: coarse, fine; the last one counts). Throws as
/// read_cifar_dataset. Memory: in proportion to what the file holds.
CifarFile read_cifar_file(const std::filesystem::path& path, int64_t label_bytes, int64_t classes);

}  // namespace bellows::data
