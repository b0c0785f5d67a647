// The safetensors file format: named tensors, read and mapped by Python's `safetensors` package as
// well. Source: the format's description in the safetensors repository (8-byte little-endian header
// length, JSON header of at most 100 MB, contiguous data without holes). To read single tensors, or
// to map a file: safetensors_file.h.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "bellows/tree/tree.h"

namespace bellows::checkpoint {

using Metadata = std::map<std::string, std::string>;

/// Whether a checksum of each tensor is written, in the metadata, where other readers ignore it.
enum class Checksums { yes, no };

/// Writes the tensors in the order of the Python package (falling alignment of the type, then
/// name). `path` holds all of it, or what it held before (replace_file of core/file.h). Tensors on
/// devices are copied to the host one at a time; non-contiguous ones are made so. The bytes depend
/// on names, values and metadata alone; without checksums and with at most one metadata entry they
/// are those of Python's `save_file`. Throws ValueError before the file is touched (a name twice,
/// "__metadata__" as a name, text that is not UTF-8, an undefined or sparse tensor, a type the
/// format lacks), FileError.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata = {{"format", "pt"}},
                       Checksums checksums = Checksums::yes);

/// All tensors of a file, on the CPU, each in memory of its own, in order of their offsets. Throws
/// FileError, or CorruptFileError with the tensor and what is wrong; nothing is allocated before
/// the header has been validated against the file's size. Checksums are compared where the file has
/// them. ValueError for a type that LibTorch lacks. `metadata` receives the file's, where asked
/// for.
NamedTensors read_safetensors(const std::filesystem::path& path, Metadata* metadata = nullptr);

}  // namespace bellows::checkpoint
