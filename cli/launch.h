// `bellows launch`: this machine's ranks of a job.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/launch/launch.h"

namespace bellows::cli {

/// `arguments` begin after "launch". Prints, and returns the exit code; throws nothing. Jobs of
/// one node are launched here, others by `several`.
int launch(const std::vector<std::string>& arguments,
           const std::function<int(const bellows::launch::Options& options)>& several);

}  // namespace bellows::cli
