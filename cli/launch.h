// `bellows launch`: the ranks of a job on this machine.
#pragma once

#include <string>
#include <vector>

namespace bellows::cli {

/// `arguments` begin after "launch". Prints, and returns the exit code; throws nothing.
int launch(const std::vector<std::string>& arguments);

}  // namespace bellows::cli
