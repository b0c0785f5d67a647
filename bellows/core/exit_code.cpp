#include "bellows/core/exit_code.h"

#include "bellows/core/error.h"

namespace bellows {

ExitCode exit_code(const std::exception& error) {
  if (dynamic_cast<const ValueError*>(&error)) return ExitCode::usage;
  if (dynamic_cast<const EnvironmentError*>(&error)) return ExitCode::environment;
  return ExitCode::failed;
}

}  // namespace bellows
