// Standard output that gets lost, for the ends of both programs.
#pragma once

#include <iostream>

#include "bellows/core/exit_code.h"

namespace bellows::cli {

/// Flushes standard output. Gives `code`; for a command that did its work, 1 where what it printed
/// got lost, and says so.
inline int after_output(int code) {
  if (std::cout.flush() || code != 0) return code;
  std::cerr << "bellows: standard output cannot be written; a full disk?" << std::endl;
  return static_cast<int>(ExitCode::failed);
}

}  // namespace bellows::cli
