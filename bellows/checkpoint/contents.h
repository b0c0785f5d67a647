// What a checkpoint consists of, between the objects that it is taken from and the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/manifest.h"

namespace bellows::checkpoint {

/// The weights' part.
inline constexpr const char* kModelPart = "model";

/// A part's state as text, and its tensors.
struct PartContents {
  std::string state = "null";
  NamedTensors tensors;
};
using Contents = std::map<std::string, PartContents>;

/// Throws ValueError for a name that is not one of letters, digits, _ and -, for "model", and for a
/// part that is not `present`.
void check_part_name(const std::string& name, bool present);

/// The state of model and parts; tensors are the live ones. Throws ValueError for names and tensors
/// that cannot be stored.
Contents gather(int64_t step, const nn::Model& model, const Parts& parts);

/// Writes them as the checkpoint of `step`, as save() says.
std::filesystem::path commit(const std::filesystem::path& root, int64_t step,
                             const Contents& contents);

/// One part's state and tensors, put together from whatever files they are spread over, and
/// compared with their checksums. Throws CorruptFileError, FileError.
PartContents read_part(const std::filesystem::path& directory, const Manifest& manifest,
                       const std::string& name);

}  // namespace bellows::checkpoint
