// Autocast with the CPU's cast lists. LibTorch has no autocast kernels for this device kind:
// without these, every operator would silently run in float32.
#include <algorithm>
#include <array>
#include <string>

#include <ATen/autocast_mode.h>

#include "bellows/device/sim/library.h"
#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

enum class Policy {
  lower,    // all arguments to the lower precision
  float32,  // all arguments to float32
  widest    // all arguments to the widest among them
};

at::ScalarType widest(const c10::IValue& value, at::ScalarType so_far) {
  if (value.isTensor()) return at::autocast::prioritize(so_far, value.toTensor(), kType);
  if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector())
      so_far = at::autocast::prioritize(so_far, tensor, kType);
  return so_far;
}

c10::IValue cast(const c10::IValue& value, at::ScalarType type) {
  if (value.isTensor()) return at::autocast::cached_cast(type, value.toTensor(), kType);
  if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& tensor : value.toTensorVector())
      out.push_back(at::autocast::cached_cast(type, tensor, kType));
    return out;
  }
  return value;
}

template <Policy policy>
void cast_and_call(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard off(c10::DispatchKey::AutocastHPU);
  const size_t first = stack->size() - op.schema().arguments().size();
  at::ScalarType type =
      policy == Policy::float32 ? at::kFloat : at::autocast::get_autocast_dtype(kType);
  if (policy == Policy::widest)
    for (size_t i = first; i < stack->size(); ++i) type = widest((*stack)[i], type);
  for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = cast((*stack)[i], type);
  op.callBoxed(stack);
}

// What the CPU casts to the lower precision, and what to the widest type; all else that it casts
// goes to float32 (aten/src/ATen/autocast_mode.cpp; asserted against the CPU's own types, operator
// by operator, in the tests).
constexpr std::array kLower{"_convolution.deprecated",
                            "_native_multi_head_attention",
                            "addbmm",
                            "addmm",
                            "baddbmm",
                            "bmm",
                            "conv1d",
                            "conv1d.padding",
                            "conv2d",
                            "conv2d.padding",
                            "conv3d",
                            "conv3d.padding",
                            "conv_tbc",
                            "conv_transpose1d",
                            "conv_transpose2d.input",
                            "conv_transpose3d.input",
                            "linalg_vecdot",
                            "linear",
                            "matmul",
                            "mkldnn_rnn_layer",
                            "mm",
                            "prelu",
                            "scaled_dot_product_attention"};
constexpr std::array kWidest{"cat", "index_copy", "index_copy.dimname", "stack"};

template <size_t n>
bool among(const std::array<const char*, n>& names, const std::string& name) {
  return std::ranges::any_of(names, [&](const char* known) { return name == known; });
}

torch::CppFunction kernel_for(const std::string& name) {
  using torch::CppFunction;
  if (among(kLower, name))
    return CppFunction::makeFromBoxedFunction<&cast_and_call<Policy::lower>>();
  if (among(kWidest, name))
    return CppFunction::makeFromBoxedFunction<&cast_and_call<Policy::widest>>();
  return CppFunction::makeFromBoxedFunction<&cast_and_call<Policy::float32>>();
}

}  // namespace

void register_autocast() {
  constexpr auto kKey = c10::DispatchKey::AutocastHPU;
  library("_", kKey).fallback(torch::CppFunction::makeFallthrough());
  torch::Library& casts = library("aten", kKey);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name :
       dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::AutocastCPU)) {
    if (!name.name.starts_with("aten::")) continue;
    const std::string own = c10::toString(name).substr(sizeof("aten::") - 1);
    casts.impl(own.c_str(), kernel_for(own));
  }
}

}  // namespace bellows::sim
