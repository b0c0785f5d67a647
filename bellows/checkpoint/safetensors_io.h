// The files of a checkpoint, of which its manifest keeps a digest.
#pragma once

#include <filesystem>

#include "bellows/checkpoint/digest.h"
#include "bellows/checkpoint/safetensors.h"
#include "bellows/checkpoint/safetensors_file.h"

namespace bellows::checkpoint {

/// As write_safetensors with checksums, but straight to `path`, with fsync: for a directory that
/// has no name yet. Returns the digest of what was written.
Digest write_safetensors_hashed(const std::filesystem::path& path, const NamedTensors& tensors,
                                const Metadata& metadata = {{"format", "pt"}});

/// Throws what write_safetensors throws before it touches the file.
void check_writable(const NamedTensors& tensors);

/// The file, whose header is the expected one; of version 1, all of it. Throws CorruptFileError.
SafetensorsFile open_safetensors_hashed(const std::filesystem::path& path, const Digest& expected);

/// As read_safetensors; throws CorruptFileError where the file's bytes are not those of `expected`.
NamedTensors read_safetensors_hashed(const std::filesystem::path& path, const Digest& expected);

}  // namespace bellows::checkpoint
