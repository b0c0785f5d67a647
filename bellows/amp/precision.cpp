#include "bellows/amp/precision.h"

#include <array>
#include <string>

#include <ATen/Context.h>
#include <c10/core/GradMode.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::amp {
namespace {

struct Entry {
  std::string_view name;
  Precision precision;
  PrecisionSettings settings;
};

const std::array<Entry, 5>& entries() {
  static const std::array<Entry, 5> all{
      {{"fp32", Precision::fp32, {}},
       {"tf32", Precision::tf32, {.allow_tf32 = true}},
       {"bf16", Precision::bf16, {.autocast = at::kBFloat16}},
       {"fp16", Precision::fp16, {.autocast = at::kHalf, .scaler = true}},
       {"bf16-true", Precision::bf16_true, {.parameters = at::kBFloat16}}}};
  return all;
}

const Entry& entry_of(Precision precision) {
  for (const Entry& entry : entries()) {
    if (entry.precision == precision) return entry;
  }
  throw ValueError(concat("precision ", static_cast<int>(precision), " is none of amp::Precision"));
}

}  // namespace

Precision parse_precision(std::string_view text) {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) {
    if (entry.name == text) return entry.precision;
    names.emplace_back(entry.name);
  }
  const std::string near = nearest(text, names);
  throw ValueError(concat("precision: got '", text, "', expected one of ", join(names),
                          near.empty() ? "" : concat("; did you mean '", near, "'?")));
}

std::string_view precision_name(Precision precision) {
  return entry_of(precision).name;
}

PrecisionSettings settings_of(Precision precision) {
  return entry_of(precision).settings;
}

void set_allow_tf32(bool allow) {
  at::globalContext().setAllowTF32CuBLAS(allow);
  at::globalContext().setAllowTF32CuDNN(allow);
}

void convert(const NamedTensors& tensors, at::ScalarType type) {
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || !at::isFloatingType(tensor.scalar_type()) ||
        tensor.scalar_type() == type) {
      continue;
    }
    tensor.mutable_grad().reset();
    at::Tensor(tensor).set_data(tensor.detach().to(type));
  }
}

Tree cast_floating(const Tree& input, at::ScalarType type) {
  return input.map([&](const at::Tensor& tensor) {
    return tensor.defined() && at::isFloatingType(tensor.scalar_type()) ? tensor.to(type) : tensor;
  });
}

}  // namespace bellows::amp
