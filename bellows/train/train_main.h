// The whole of `bellows train` and `bellows eval` for a program of one's own:
//
//   int main(int argc, char** argv) {
//     auto registry = bellows::nn::builtin_models();
//     registry.add("mine", [](bellows::Options& options) { … });
//     return bellows::train_main(argc, argv, registry);
//   }
//
// Unlike the rest of the library these functions print (to standard output, errors to standard
// error) and choose the exit code: 0 done, 1 failed while running, 2 bad usage or configuration, 3
// the environment lacks something, 75 ended by SIGINT, SIGTERM or SIGUSR1 with everything saved.
#pragma once

#include "bellows/nn/registry.h"

namespace bellows {

/// Parses the command line, trains, writes the run directory. Call it first thing in main. Returns
/// the exit code; throws nothing.
int train_main(int argc, char** argv, const nn::Registry& registry = nn::builtin_models());

/// Evaluates a checkpoint on the test data of its run.
int eval_main(int argc, char** argv, const nn::Registry& registry = nn::builtin_models());

}  // namespace bellows
