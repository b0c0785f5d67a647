// Exit codes of Bellows' programs.
#pragma once

#include <exception>

namespace bellows {

enum class ExitCode {
  done = 0,
  failed = 1,        // while running: out of memory, NaN, a full disk
  usage = 2,         // bad usage or configuration
  environment = 3,   // a device, data or a writable directory is missing
  interrupted = 75,  // SIGINT, SIGTERM or SIGUSR1; everything is saved
};

/// The code for an error that ends a program before its work has begun.
ExitCode exit_code(const std::exception& error);

}  // namespace bellows
