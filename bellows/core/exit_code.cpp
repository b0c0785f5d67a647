#include "bellows/core/exit_code.h"

#include <exception>

#include "bellows/core/error.h"

namespace bellows {

ExitCode exit_code(const std::exception& error) {
  if (dynamic_cast<const ValueError*>(&error)) return ExitCode::usage;
  if (dynamic_cast<const EnvironmentError*>(&error)) return ExitCode::environment;
  try {
    std::rethrow_if_nested(error);
  } catch (const EnvironmentError&) {  // a damaged file behind a sample that could not be read
    return ExitCode::environment;
  } catch (...) {
  }
  return ExitCode::failed;
}

}  // namespace bellows
