// Checkpoints: directories that are complete or not there.
//
//   <root>/step-00001200/model.safetensors        the weights alone; same weights, same bytes
//                        <part>.safetensors       tensors of every other part that has any
//                        checkpoint.json          version, step, the parts' numbers and strings
//   <root>/last, <root>/best                      symbolic links to a step
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bellows/nn/model.h"
#include "bellows/tree/stateful.h"

namespace bellows::checkpoint {

/// Written as "version" in checkpoint.json. A reader refuses a newer one by name; later fields may
/// be added.
inline constexpr int64_t kVersion = 1;

/// Parts by name: "optimizer", "loader", "random", "trainer", …
using Parts = std::map<std::string, const Stateful*>;
using MutableParts = std::map<std::string, Stateful*>;

/// Writes checkpoint `step` under `root`: into a temporary directory, every file synced, then
/// renamed, then the parent directory synced; updates `last`. A complete checkpoint of that step is
/// replaced; at any moment one of the two is found. Left-overs of killed saves are removed. Returns
/// the directory. One process at a time saves under a root. Throws ValueError (a negative step, a
/// part's name other than letters, digits, _ and -, a tensor that cannot be stored), FileError;
/// what was there before stays.
std::filesystem::path save(const std::filesystem::path& root, int64_t step, const nn::Model& model,
                           const Parts& parts);

/// Restores the model and the parts asked for; parts that the checkpoint has besides are left
/// alone. All files are read and checked against their checksums before anything is changed, and
/// where a part refuses its state, those before it get their old one back. Throws CorruptFileError,
/// FileError, ValueError (missing part, weights or state that do not fit, newer version).
void load(const std::filesystem::path& directory, const nn::Model& model,
          const MutableParts& parts);

/// Weights only: from a checkpoint directory, a safetensors file, a state dict that Python's
/// torch.save wrote, an archive of LibTorch's torch::save, or TorchScript's parameters and buffers;
/// told apart by content. Throws as read_weights_file and Model::load_state_dict.
void load_weights(const std::filesystem::path& path, const nn::Model& model);

/// The step of a checkpoint directory (from its checkpoint.json).
int64_t step_of(const std::filesystem::path& directory);

/// Complete checkpoints under root, oldest first; none where there is no such directory. Damaged
/// ones (a file missing or of another size, a damaged or newer checkpoint.json) are left out and
/// logged as warnings, once; contents are checked by `load`. Throws FileError for a directory that
/// cannot be listed.
std::vector<std::filesystem::path> list(const std::filesystem::path& root);
/// The newest complete one, if any.
std::optional<std::filesystem::path> latest(const std::filesystem::path& root);

/// Points `best` to the checkpoint, which must be whole and under root.
void mark_best(const std::filesystem::path& root, const std::filesystem::path& directory);

/// Removes all but the newest `count` and those that `best` and `last` point to. count >= 1.
void keep_last(const std::filesystem::path& root, int64_t count);

}  // namespace bellows::checkpoint
