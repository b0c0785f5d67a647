// `bellows doctor`: what this machine, its LibTorch and its devices are like.
#pragma once

#include <string>
#include <vector>

namespace bellows::cli {

/// Prints facts and states; works where LibTorch is missing or broken. `libtorch` is --libtorch.
/// Exit code 0 when training works here (at least on the CPU), 3 when it does not, 2 for bad usage.
int doctor(const std::vector<std::string>& arguments, const std::string& libtorch);

}  // namespace bellows::cli
