// Where `bellows` looks for LibTorch before it starts the program that needs it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace bellows::cli {

struct LibTorchSearch {
  /// The folder with lib/libtorch_cpu.so, if any place had it.
  std::optional<std::filesystem::path> root;
  /// Which place it was ("--libtorch", "LIBTORCH", …); or where all was looked, one line each.
  std::string source;
  std::vector<std::string> looked_at;
};

/// In this order: `given` (--libtorch; then nothing else counts), the environment variable LIBTORCH
/// (likewise), beside the program, the path in <prefix>/etc/bellows/libtorch, .venv of the current
/// folder, .venv of the source tree a build lies in; of the last
/// four, one of another minor version than Bellows was built with is passed over.
LibTorchSearch find_libtorch(const std::string& given);

/// A sentence about a library of that LibTorch that is missing or cannot be loaded (cut off, not a
/// library), if there is one: the loader would end the process with it, or a bus error.
std::optional<std::string> damage_of(const std::filesystem::path& libtorch);

/// A sentence where that LibTorch is of another minor version than the one Bellows was built with:
/// it keeps no binary compatibility between them, and the program would end with it.
std::optional<std::string> mismatch_of(const std::filesystem::path& libtorch);

/// The folder of the running program, links resolved.
std::filesystem::path program_folder();

}  // namespace bellows::cli
