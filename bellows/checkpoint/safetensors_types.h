// The types of the format and those of LibTorch.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "bellows/checkpoint/safetensors_header.h"

namespace bellows::checkpoint {

/// The format's name of a type; empty for a type the format lacks.
std::string_view dtype_name(at::ScalarType type);
/// LibTorch's type for a name that parse_header accepts; none for those that LibTorch lacks.
std::optional<at::ScalarType> dtype_from(std::string_view name);
/// Values that one element of LibTorch's type holds: two for the packed F4, else one. The last
/// dimension counts elements in LibTorch and values in the file.
int64_t values_per_element(at::ScalarType type);

/// How LibTorch sees an entry. Throws ValueError for `entry` of a type that it lacks, or of F4 with
/// an odd last dimension.
struct TensorForm {
  at::ScalarType type;
  std::vector<int64_t> sizes;
};
TensorForm form_of(const TensorEntry& entry);

}  // namespace bellows::checkpoint
