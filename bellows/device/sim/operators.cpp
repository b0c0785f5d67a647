// The kernels of the device kind: those that are not the CPU's on host views, and which of those
// are.
#include <array>
#include <deque>
#include <set>
#include <string>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include "bellows/core/text.h"
#include "bellows/device/sim/copy.h"
#include "bellows/device/sim/fallback.h"
#include "bellows/device/sim/host_view.h"
#include "bellows/device/sim/library.h"
#include "bellows/device/sim/memory.h"
#include "bellows/device/sim/queue.h"
#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

c10::Device wanted(std::optional<c10::Device> device) {
  return device && device->has_index() ? *device : device_at(current_device());
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "only CPU tensors can be pinned");
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided,
                              "simulated devices have strided tensors only, got layout ", *layout);
}

// As LibTorch fills new memory in deterministic mode, so that reading it unset shows.
at::Tensor filled_if_deterministic(at::Tensor out) {
  const at::Context& context = at::globalContext();
  if (!context.deterministicAlgorithms() || !context.deterministicFillUninitializedMemory())
    return out;
  // The CPU's own new number of that type shows with what.
  out.fill_(at::empty({}, at::device(at::kCPU).dtype(out.scalar_type())));
  return out;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  check_options(layout, pin_memory);
  const c10::DeviceGuard guard(wanted(device));
  return filled_if_deterministic(at::detail::empty_generic(
      sizes, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::HPU),
      type.value_or(at::get_default_dtype_as_scalartype()), format));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> type, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const c10::DeviceGuard guard(wanted(device));
  return filled_if_deterministic(
      empty_on_device(sizes, strides, type.value_or(at::get_default_dtype_as_scalartype())));
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes())
    to.resize_(from.sizes());  // always resizing would destroy strides
  return copy_from(from, to, false);
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return at::cpu::as_strided(self, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  return at::native::view(self, sizes);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset,
                        at::IntArrayRef sizes, at::IntArrayRef strides) {
  TORCH_CHECK(storage.device() == self.device(), "set_: expected a storage on the tensor's device");
  return at::cpu::set_(self, std::move(storage), offset, sizes, strides);
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const auto count =
      static_cast<int64_t>(storage.nbytes()) / static_cast<int64_t>(self.element_size());
  return set_storage(self, std::move(storage), 0, {count}, {1});
}

// Zeros without memory, which LibTorch uses to save work; here, with memory.
at::Tensor zeros_with_memory(at::IntArrayRef sizes, std::optional<at::ScalarType> type,
                             std::optional<at::Layout> layout, std::optional<at::Device> device,
                             std::optional<bool> pin_memory) {
  return empty(sizes, type, layout, device, pin_memory, std::nullopt).zero_();
}

at::Tensor clone_at_once(const at::Tensor& self) {
  return self.clone();
}

// Layouts that simulated devices do not have.
void refuse_layout(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, c10::toString(op.operator_name()),
      ": simulated devices have ordinary (strided) tensors only, no sparse, quantized or nested "
      "ones; run it on the CPU");
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  static_cast<c10::DeviceAllocator*>(device_allocator())
      ->recordStream(self.storage().data_ptr(), stream);
}

// The CPU's formula, with the mask drawn from the device's generator
// (aten/src/ATen/native/Dropout.cpp).
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  if (input.numel() == 0) return {input, at::empty_like(input, input.options().dtype(at::kBool))};
  if (train.has_value() && !*train)
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  const double keep = 1 - p;
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(keep);
  at::Tensor output = input.mul(mask).mul_(keep == 0 ? 0.0 : 1.0 / keep);
  return {output, mask};
}

// Composite kernels that choose by device kind: on host views they choose as on the CPU.
constexpr std::array kChoosing{
    "convolution",   "convolution_backward",   "_convolution",       "mkldnn_convolution",
    "kaiser_window", "kaiser_window.periodic", "kaiser_window.beta", "mode.values"};
// Those with kernels of their own above.
constexpr std::array kOwn{"empty.memory_format",
                          "empty_strided",
                          "_copy_from",
                          "_copy_from_and_resize",
                          "as_strided",
                          "view",
                          "set_.source_Storage_storage_offset",
                          "set_.source_Storage",
                          "_efficientzerotensor",
                          "_lazy_clone",
                          "record_stream",
                          "native_dropout"};

// Operators with a CPU kernel that, on another device, would not reach the fall-back but a
// composite kernel: there, the CPU's own is wanted, so that the numbers are the CPU's.
std::set<std::string> shadowed_by_composites() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::set<std::string> out;
  for (const auto& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
      out.insert(c10::toString(name).substr(sizeof("aten::") - 1));
    }
  }
  return out;
}

}  // namespace

torch::Library& library(const char* name, c10::DispatchKey key) {
  static auto* all = new std::deque<torch::Library>;
  return all->emplace_back(torch::Library::IMPL, name, key, __FILE__, __LINE__);
}

void register_operators() {
  constexpr auto kKey = c10::DispatchKey::HPU;
  library("_", kKey).fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  torch::Library& own = library("aten", kKey);
  own.impl("empty.memory_format", &empty);
  own.impl("empty_strided", &empty_strided);
  own.impl("_copy_from", &copy_from);
  own.impl("_copy_from_and_resize", &copy_from_and_resize);
  own.impl("as_strided", &as_strided);
  own.impl("view", &view);
  own.impl("set_.source_Storage_storage_offset", &set_storage);
  own.impl("set_.source_Storage", &set_whole_storage);
  own.impl("_efficientzerotensor", &zeros_with_memory);
  own.impl("_lazy_clone", &clone_at_once);
  own.impl("record_stream", &record_stream);
  own.impl("native_dropout", &native_dropout);

  // Copies take conjugated and negated views as they are: making them real first is a copy again.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    library("aten", key).impl("_copy_from", torch::CppFunction::makeFallthrough());
    library("aten", key).impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
  }
  for (const auto key : {c10::DispatchKey::SparseHPU, c10::DispatchKey::SparseCsrHPU,
                         c10::DispatchKey::QuantizedHPU, c10::DispatchKey::NestedTensorHPU})
    library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());

  std::set<std::string> twins = shadowed_by_composites();
  twins.insert(kChoosing.begin(), kChoosing.end());
  for (const char* name : kOwn) twins.erase(name);
  for (const std::string& name : twins)
    own.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

}  // namespace bellows::sim
