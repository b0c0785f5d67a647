// Reading and writing safetensors files with a digest of their bytes taken on the way.
#pragma once

#include <filesystem>

#include "bellows/checkpoint/digest.h"
#include "bellows/checkpoint/safetensors.h"

namespace bellows::checkpoint {

/// As write_safetensors; returns the digest of what was written.
Digest write_safetensors_hashed(const std::filesystem::path& path, const NamedTensors& tensors,
                                const Metadata& metadata = {{"format", "pt"}});

/// As read_safetensors; throws CorruptFileError where the file's bytes are not those of `expected`.
NamedTensors read_safetensors_hashed(const std::filesystem::path& path, const Digest& expected);

}  // namespace bellows::checkpoint
