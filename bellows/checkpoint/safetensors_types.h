// The types of the format and those of LibTorch.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace bellows::checkpoint {

/// The format's name of a type; empty for a type the format lacks.
std::string_view dtype_name(at::ScalarType type);
/// LibTorch's type for a name that parse_header accepts.
std::optional<at::ScalarType> dtype_from(std::string_view name);

}  // namespace bellows::checkpoint
