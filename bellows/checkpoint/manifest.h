// checkpoint.json: what a checkpoint consists of. Its last entry is a checksum of the text before
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "bellows/checkpoint/digest.h"

namespace bellows::checkpoint {

inline constexpr const char* kManifestName = "checkpoint.json";

struct Manifest {
  int64_t step = 0;
  std::map<std::string, Digest> files;       // all but checkpoint.json, by name
  std::map<std::string, std::string> parts;  // by name, the JSON of tree_json.h
};

std::string format_manifest(const Manifest& manifest);

/// Reads and checks `directory`'s manifest, and that each file it lists is there with its exact
/// size (not its bytes). Throws FileError, CorruptFileError, and ValueError for a version that is
/// newer.
Manifest read_manifest(const std::filesystem::path& directory);

}  // namespace bellows::checkpoint
