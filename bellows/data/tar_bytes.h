// The bytes of a tar archive in sequence, whatever it is compressed with. Without LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "bellows/formats/input_bytes.h"

namespace bellows::data {

class TarBytes {
 public:
  virtual ~TarBytes() = default;
  /// The next bytes, valid until the next call; none at the end, and where the file is damaged.
  /// Throws FileError.
  virtual std::span<const std::byte> next() = 0;
  /// Leaves out up to `count` bytes; how many. 0 where they must be read.
  virtual int64_t skip(int64_t) { return 0; }
  /// Why the bytes ended before their time; empty when they did not.
  virtual std::string defect() const { return {}; }
};

/// `input` as it is, or unpacked where it starts as gzip (checksums verified), bzip2, xz, zstd, lz4
/// and what else libarchive knows.
std::unique_ptr<TarBytes> open_tar_bytes(std::shared_ptr<const formats::InputBytes> input);

}  // namespace bellows::data
