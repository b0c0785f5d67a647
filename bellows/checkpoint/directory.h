// The names and life of checkpoint directories under a root. Whatever is written, removed or set
// aside carries a hidden name of its own, so that a process killed in between leaves no half
// checkpoint:
//
//   step-00001200             complete
//   .step-00001200.tmp-…      being written
//   .step-00001200.old-…      replaced; counts as complete while there is no whole step-00001200
//   .step-00001200.del-…      being removed
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace bellows::checkpoint {

/// Whatever writes or removes under a root, in any thread of this process, holds this meanwhile.
std::unique_lock<std::mutex> take_turn();

/// "step-00001200".
std::string step_name(int64_t step);

/// A hidden name under root for this step and kind ("tmp", "old", "del"), with this host and
/// process in it; no two calls give the same.
std::filesystem::path hidden_name(const std::filesystem::path& root, int64_t step,
                                  const std::string& kind);

/// Directories that may be a checkpoint, oldest step first; of the same step the complete one last.
std::vector<std::filesystem::path> candidates(const std::filesystem::path& root);

/// Why `directory` is not a whole checkpoint of the step in its name; empty where it is. `newer` is
/// set where it is of a newer version.
std::string fault_of(const std::filesystem::path& directory, bool* newer = nullptr);

/// Creates a directory whose parent exists. Throws FileError.
void make_directory(const std::filesystem::path& path);

/// Makes `written` the checkpoint of `step`, durably. Another one of that step is replaced such
/// that at any moment one of the two is found. Throws FileError; the other one then stays or is put
/// back.
std::filesystem::path publish(const std::filesystem::path& root, int64_t step,
                              const std::filesystem::path& written);

/// Removes a checkpoint; in no moment half of it has its name. Throws ValueError, with nothing
/// changed, for what is not named as one or holds a directory; FileError.
void discard(const std::filesystem::path& directory);

/// Removes a directory of plain files. Throws FileError.
void remove_directory(const std::filesystem::path& path);

/// Removes what killed processes left: hidden directories of processes of this host that have
/// ended, of this process, and of other hosts when older than a day. A replaced checkpoint whose
/// successor never came gets its name back. Throws FileError.
void collect_left_overs(const std::filesystem::path& root);

}  // namespace bellows::checkpoint
