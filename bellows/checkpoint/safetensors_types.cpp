#include "bellows/checkpoint/safetensors_types.h"

#include <algorithm>
#include <array>

namespace bellows::checkpoint {
namespace {

struct TypeName {
  at::ScalarType type;
  std::string_view name;
};
constexpr std::array<TypeName, 19> kTypes = {{
    {at::kBool, "BOOL"},
    {at::kByte, "U8"},
    {at::kChar, "I8"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e8m0fnu, "F8_E8M0"},
    {at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
    {at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
    {at::kShort, "I16"},
    {at::kUInt16, "U16"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kInt, "I32"},
    {at::kUInt32, "U32"},
    {at::kFloat, "F32"},
    {at::kComplexFloat, "C64"},
    {at::kDouble, "F64"},
    {at::kLong, "I64"},
    {at::kUInt64, "U64"},
}};

}  // namespace

std::string_view dtype_name(at::ScalarType type) {
  const auto found = std::ranges::find(kTypes, type, &TypeName::type);
  return found == kTypes.end() ? std::string_view() : found->name;
}

std::optional<at::ScalarType> dtype_from(std::string_view name) {
  const auto found = std::ranges::find(kTypes, name, &TypeName::name);
  if (found == kTypes.end()) return std::nullopt;
  return found->type;
}

}  // namespace bellows::checkpoint
