#include "bellows/checkpoint/safetensors_types.h"

#include <algorithm>
#include <array>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

struct TypeName {
  at::ScalarType type;
  std::string_view name;
};
constexpr std::array<TypeName, 20> kTypes = {{
    {at::kBool, "BOOL"},
    {at::ScalarType::Float4_e2m1fn_x2, "F4"},
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

int64_t values_per_element(at::ScalarType type) {
  return type == at::ScalarType::Float4_e2m1fn_x2 ? 2 : 1;
}

TensorForm form_of(const TensorEntry& entry) {
  const auto type = dtype_from(entry.dtype);
  if (!type) {
    throw ValueError("safetensors: tensor '" + entry.name + "' has type " + entry.dtype +
                     ", which LibTorch lacks");
  }
  TensorForm form{*type, entry.shape};
  if (const int64_t packed = values_per_element(*type); packed > 1) {
    if (form.sizes.empty() || form.sizes.back() % packed != 0) {
      throw ValueError(concat("safetensors: tensor '", entry.name, "' of type ", entry.dtype,
                              " must have an even last dimension to be read"));
    }
    form.sizes.back() /= packed;
  }
  return form;
}

}  // namespace bellows::checkpoint
