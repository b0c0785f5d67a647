// checkpoint.json: what a checkpoint consists of (docs/checkpoints.md has an example). Its last
// entry is a checksum of the text before it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/checkpoint/digest.h"

namespace bellows::checkpoint {

inline constexpr const char* kManifestName = "checkpoint.json";
/// Written as "version" in checkpoint.json. A reader refuses a newer one by name and brings older
/// ones to today's form; later fields may be added.
inline constexpr int64_t kVersion = 2;

/// A stretch of a tensor: what a file holds under the tensor's name, from `offset` on (one index
/// for each dimension). Its shape is the file's.
struct Slice {
  std::string file;
  std::vector<int64_t> offset;
};

/// A tensor that lies in slices, which cover it without overlap.
struct SlicedTensor {
  std::vector<int64_t> shape;
  std::vector<Slice> slices;
};

/// One part: its numbers and text, and where its tensors are.
struct Part {
  std::string state = "null";                  // the JSON of tree_json.h; of the model: null
  std::vector<std::string> files;              // each tensor whole in one of them,
  std::map<std::string, SlicedTensor> sliced;  // but for these
};

struct Manifest {
  int64_t step = 0;
  std::map<std::string, Digest> files;  // all but checkpoint.json, by name
  std::map<std::string, Part> parts;    // by name; "model" is the weights
};

std::string format_manifest(const Manifest& manifest);

/// The end of a manifest's text, which holds the checksum of what comes before.
std::string manifest_end(std::string_view body);

/// The manifest in `text`, brought from an older version to today's form. Throws CorruptFileError
/// for `path`, and ValueError for a version that is newer.
Manifest parse_manifest(const std::filesystem::path& path, const std::string& text);

/// Reads `directory`'s manifest, and checks that each file it lists is there with its exact size
/// (not its bytes). Throws FileError too.
Manifest read_manifest(const std::filesystem::path& directory);

}  // namespace bellows::checkpoint
