#include "bellows/core/error.h"

#include <system_error>

namespace bellows {

FileError::FileError(const std::filesystem::path& path, const std::string& operation, int code)
    : EnvironmentError(path.string() + ": " + operation + ": " +
                       std::generic_category().message(code)),
      path_(path),
      operation_(operation),
      code_(code) {}

}  // namespace bellows
