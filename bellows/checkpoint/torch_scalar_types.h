// LibTorch's types in the order of formats::kTorchTypes.
#pragma once

#include <array>

#include <c10/core/ScalarType.h>

#include "bellows/formats/torch_types.h"

namespace bellows::checkpoint {

inline constexpr std::array<at::ScalarType, formats::kTorchTypes.size()> kScalarTypes = {
    at::kFloat,
    at::kDouble,
    at::kHalf,
    at::kBFloat16,
    at::kByte,
    at::kChar,
    at::kShort,
    at::kInt,
    at::kLong,
    at::kBool,
    at::kComplexFloat,
    at::kComplexDouble,
    at::kComplexHalf,
    at::kUInt16,
    at::kUInt32,
    at::kUInt64,
    at::kFloat8_e4m3fn,
    at::kFloat8_e5m2,
    at::kFloat8_e4m3fnuz,
    at::kFloat8_e5m2fnuz,
    at::kFloat8_e8m0fnu,
    at::kFloat4_e2m1fn_x2,
};

/// "float32"; LibTorch's own name for a type that PyTorch's files lack.
std::string_view torch_type_name(at::ScalarType type);

}  // namespace bellows::checkpoint
