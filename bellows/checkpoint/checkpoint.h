// Checkpoints: directories that are complete or not there.
//
//   <root>/step-00001200/model.safetensors        the weights alone; same weights, same bytes
//                        <part>.safetensors       tensors of every other part that has any
//                        checkpoint.json          version, step, the parts' numbers and strings
//   <root>/last, <root>/best                      symbolic links to a step
//
// docs/checkpoints.md has the layout in full. Saves, removals and marks of one process take turns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/nn/model.h"
#include "bellows/tree/stateful.h"

namespace bellows::checkpoint {

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

/// Where checkpoint `step` is, or would be.
std::filesystem::path directory_of(const std::filesystem::path& root, int64_t step);

/// The step of a checkpoint directory (from its checkpoint.json).
int64_t step_of(const std::filesystem::path& directory);

/// Reads all files and compares them with their checksums. Throws CorruptFileError naming file and
/// tensor, FileError, ValueError for a newer version.
void verify(const std::filesystem::path& directory);

/// Complete checkpoints under root, oldest first; none where there is no such directory. Damaged
/// ones (a file missing or of another size, a damaged or newer checkpoint.json) are left out and
/// logged as warnings, once; contents are checked by `load`. Throws FileError for a directory that
/// cannot be listed.
std::vector<std::filesystem::path> list(const std::filesystem::path& root);

/// A checkpoint that is not whole, or of a newer version.
struct Fault {
  std::filesystem::path directory;
  std::string what;  // a sentence with its name
  bool newer = false;
};
/// What `list` leaves out, and why; oldest first.
std::vector<Fault> faults(const std::filesystem::path& root);
/// Whether an error says that a checkpoint is damaged, so that another may be taken instead: not
/// for a newer version, or a lack of memory or file descriptors.
bool is_damage(const Error& error);

/// What is looked at before a checkpoint counts as whole.
enum class Check {
  sizes,     // as `list`
  contents,  // all bytes, as `verify`
};
/// The newest whole one, if any; those left out are logged.
std::optional<std::filesystem::path> latest(const std::filesystem::path& root,
                                            Check check = Check::sizes);

/// Loads the newest checkpoint. Where one turns out to be damaged, logs a warning that names it and
/// takes the one before; throws only where none is left (the newest one's error), or for what is no
/// damage. Gives the checkpoint loaded; nothing where there is none.
std::optional<std::filesystem::path> load_latest(const std::filesystem::path& root,
                                                 const nn::Model& model, const MutableParts& parts);

/// Removes a checkpoint, of which half is there under its name in no moment. Throws ValueError,
/// with nothing changed, for a directory that is not named step-N or holds another directory;
/// FileError.
void remove(const std::filesystem::path& directory);

/// Points `best` to the checkpoint, which must be whole and under root.
void mark_best(const std::filesystem::path& root, const std::filesystem::path& directory);

/// Removes all but the newest `count`, those that `best` and `last` point to, and those of the
/// steps `besides`. count >= 1. Damaged ones are left alone.
void keep_last(const std::filesystem::path& root, int64_t count,
               const std::set<int64_t>& besides = {});

}  // namespace bellows::checkpoint
