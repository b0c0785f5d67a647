// NumPy's .npy files.
// Source: NumPy Enhancement Proposal 1 and numpy.lib.format (versions 1.0, 2.0, 3.0).
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include <ATen/core/Tensor.h>

namespace bellows::data {

struct NpyOptions {
  /// The tensor is the file's own memory, read when it is touched, and shared with other processes;
  /// it must not be written to. For little-endian files in C order. A file that becomes shorter
  /// meanwhile ends the process with SIGBUS: replace files by renaming.
  bool map = false;
};

/// Reads an array into a CPU tensor of its type and shape: bool, (u)int8 to 64, float16 to 64,
/// complex64 and 128, either byte order, C or Fortran order (the tensor then has Fortran's
/// strides). Throws FileError, and CorruptFileError naming the file, what was found and what was
/// expected (magic, version, header, type, shape, missing or excess bytes); ValueError where `map`
/// cannot serve. Nothing is allocated before the header has been checked against the file's size.
at::Tensor read_npy(const std::filesystem::path& path, const NpyOptions& options = {});
/// The same of a file's content; `name` is for messages.
at::Tensor decode_npy(std::span<const std::byte> file, const std::filesystem::path& name);

}  // namespace bellows::data
