// `bellows find-batch` and `bellows estimate`: what of a configuration fits into a device's memory.
#pragma once

namespace bellows::cli {

/// The arguments after the command's word come first in argv[1]. Gives the exit code; throws what
/// goes wrong before anything is printed.
int find_batch_command(int argc, char** argv);
int estimate_command(int argc, char** argv);

}  // namespace bellows::cli
