// What a file of torch.save (zip or legacy) or of TorchScript holds, with its tensors described and
// located but not read. Needs no LibTorch.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "bellows/formats/pickle.h"
#include "bellows/formats/zip_directory.h"

namespace bellows::formats {

/// The newest archive version (entry "version") this reads; LibTorch's
/// kMaxSupportedFileFormatVersion.
inline constexpr int64_t kNewestTorchArchive = 10;

struct StoredStorage {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::optional<uint32_t> crc32;  // legacy files have none
};

struct TorchContents {
  pickle::Heap heap;
  pickle::Value root;
  std::map<std::string, StoredStorage, std::less<>> storages;  // by key
};

/// Whether the first bytes are those of a legacy file.
bool begins_as_legacy_torch(std::string_view bytes);
/// The folder in which a PyTorch archive's entries lie ("archive/"); nothing where it is none.
std::optional<std::string> torch_archive_prefix(const ZipDirectory& directory);

/// Every tensor's storage is there, of the size that is named, and its elements lie within it.
/// Memory is at most the file's size and 15 MiB. Throws CorruptFileError; ValueError for a version
/// that is newer, big-endian files, storages of types that plain tensors lack.
TorchContents read_torch_zip(const InputBytes& file, const ZipDirectory& directory,
                             const std::string& prefix);
TorchContents read_torch_legacy(const InputBytes& file);

}  // namespace bellows::formats
