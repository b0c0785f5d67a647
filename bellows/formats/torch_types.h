// PyTorch's element types by the names that its files use. Needs no LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace bellows::formats {

struct TorchType {
  std::string_view dtype;    // "float32": torch.float32
  std::string_view storage;  // "FloatStorage"; empty: such tensors are saved with untyped storages
  int64_t bytes;
};

inline constexpr std::array<TorchType, 22> kTorchTypes = {{
    {"float32", "FloatStorage", 4},
    {"float64", "DoubleStorage", 8},
    {"float16", "HalfStorage", 2},
    {"bfloat16", "BFloat16Storage", 2},
    {"uint8", "ByteStorage", 1},
    {"int8", "CharStorage", 1},
    {"int16", "ShortStorage", 2},
    {"int32", "IntStorage", 4},
    {"int64", "LongStorage", 8},
    {"bool", "BoolStorage", 1},
    {"complex64", "ComplexFloatStorage", 8},
    {"complex128", "ComplexDoubleStorage", 16},
    {"complex32", "", 4},
    {"uint16", "", 2},
    {"uint32", "", 4},
    {"uint64", "", 8},
    {"float8_e4m3fn", "", 1},
    {"float8_e5m2", "", 1},
    {"float8_e4m3fnuz", "", 1},
    {"float8_e5m2fnuz", "", 1},
    {"float8_e8m0fnu", "", 1},
    {"float4_e2m1fn_x2", "", 1},
}};

/// Place in kTorchTypes.
using TypeIndex = uint8_t;
inline constexpr TypeIndex kUint8Type = 4;

constexpr std::optional<TypeIndex> find_type(std::string_view name,
                                             std::string_view TorchType::*field) {
  for (TypeIndex i = 0; i < kTorchTypes.size(); ++i) {
    if (!name.empty() && kTorchTypes[i].*field == name) return i;
  }
  return std::nullopt;
}

}  // namespace bellows::formats
