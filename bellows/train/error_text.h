// Errors as the user reads them.
#pragma once

#include <exception>
#include <string>

namespace bellows::train {

/// One sentence for the user, without LibTorch's stack.
std::string message_of(const std::exception& error);

}  // namespace bellows::train
