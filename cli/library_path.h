// What `bellows` leaves for `bellows-torch` where it starts programs of the user.
#pragma once

namespace bellows::cli {

/// Environment variable: LD_LIBRARY_PATH as it was before LibTorch's folder was put before it.
inline constexpr const char* kLibraryPathBefore = "BELLOWS_LIBRARY_PATH_BEFORE";

}  // namespace bellows::cli
