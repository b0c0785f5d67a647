// The flags of `bellows launch`: torchrun's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bellows/launch/launch.h"

namespace bellows::launch {

/// `words` begins after "launch". The first word that is no flag begins the program; "--" may stand
/// before it. Flags may be written with - or _, as --flag value or --flag=value, and cut short
/// where that is unambiguous; a variable PET_FLAG in the environment stands for a flag that is not
/// given, as with torchrun. Nothing where help is asked for. Throws ValueError for everything else
/// that is not understood, and EnvironmentError for --nproc-per-node gpu without one.
std::optional<Options> parse_flags(const std::vector<std::string>& words);

/// The text of --help.
std::string help_text();

}  // namespace bellows::launch
