#include "bellows/device/sim/host_view.h"

#include <algorithm>
#include <cstring>

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorImpl.h>

#include "bellows/device/sim/memory.h"
#include "bellows/device/sim/queue.h"
#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::HPU);

// A tensor over `storage` that looks like `model`.
at::Tensor alias(c10::Storage storage, c10::DispatchKeySet keys, const at::Tensor& model) {
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, std::move(storage), keys, model.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(model.sizes(), model.strides(),
                                                   model.storage_offset());
  if (model.is_conj()) out._set_conj(true);
  if (model.is_neg()) out._set_neg(true);
  return out;
}

// New memory may have been another's a moment ago, with a copy from it still to be run on this
// stream.
void fill(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  current_queue(device_at(current_device())).drain();
  std::memcpy(to, from, bytes);
}

c10::DataPtr device_copy(const void* from, size_t bytes, c10::Device device) {
  const c10::DeviceGuard guard(device);
  c10::DataPtr data = device_allocator()->allocate(bytes);
  fill(data.get(), from, bytes);
  return data;
}

}  // namespace

at::Tensor empty_on_device(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType type) {
  return at::detail::empty_strided_generic(sizes, strides, device_allocator(), kKeys, type);
}

const HostViews::Shared& HostViews::shared(const c10::Storage& device) {
  const auto found = std::ranges::find_if(storages_, [&](const Shared& entry) {
    return entry.device.unsafeGetStorageImpl() == device.unsafeGetStorageImpl();
  });
  if (found != storages_.end()) return *found;
  void* pointer = device.mutable_data();
  c10::Storage host(c10::Storage::use_byte_size_t(), device.nbytes(),
                    c10::DataPtr(pointer, c10::Device(c10::kCPU)), c10::GetCPUAllocator(),
                    /*resizable=*/true);
  storages_.push_back({device, std::move(host), pointer, device.nbytes()});
  return storages_.back();
}

// Those of a tensor of the call in that memory: a view of an inference tensor is one.
c10::DispatchKeySet HostViews::keys_of(const c10::Storage& device) const {
  for (const auto& [own, view] : tensors_)
    if (own.storage().unsafeGetStorageImpl() == device.unsafeGetStorageImpl())
      return own.key_set() -
             c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  return kKeys;
}

const HostViews::Shared* HostViews::by_host(const c10::Storage& host) const {
  const auto found = std::ranges::find_if(storages_, [&](const Shared& entry) {
    return entry.host.unsafeGetStorageImpl() == host.unsafeGetStorageImpl();
  });
  return found == storages_.end() ? nullptr : &*found;
}

at::Tensor HostViews::of(const at::Tensor& tensor) {
  for (const auto& [own, view] : tensors_)
    if (own.is_same(tensor)) return view;
  at::Tensor view =
      alias(shared(tensor.storage()).host, c10::DispatchKeySet(c10::DispatchKey::CPU), tensor);
  tensors_.emplace_back(tensor, view);
  return view;
}

void HostViews::write_back(const at::Tensor& tensor, const at::Tensor& view) const {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::Storage& host = view.storage();
  if (const Shared* source = by_host(host)) {
    if (source->device.unsafeGetStorageImpl() != tensor.storage().unsafeGetStorageImpl())
      impl->set_storage_keep_dtype(source->device);
    if (host.data() != source->pointer || host.nbytes() != source->bytes) {
      c10::Storage own = source->device;
      own.set_data_ptr_noswap(device_copy(host.data(), host.nbytes(), tensor.device()));
      own.set_nbytes(host.nbytes());
    }
  } else {  // the operator gave it other memory
    impl->set_storage_keep_dtype(
        c10::Storage(c10::Storage::use_byte_size_t(), host.nbytes(),
                     device_copy(host.data(), host.nbytes(), tensor.device()), device_allocator(),
                     /*resizable=*/true));
  }
  if (view.sizes() != tensor.sizes() || view.strides() != tensor.strides() ||
      view.storage_offset() != tensor.storage_offset()) {
    impl->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
  }
}

at::Tensor HostViews::to_device(const at::Tensor& result, c10::Device device,
                                const std::string& name) const {
  if (!result.defined()) return result;
  TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == at::kStrided && !result.is_quantized(), name,
                              " gives a tensor of layout ", result.layout(),
                              result.is_quantized() ? ", quantized" : "",
                              ", which simulated devices do not have; run it on the CPU");
  for (const auto& [own, view] : tensors_)
    if (view.is_same(result)) return own;
  if (const Shared* source = by_host(result.storage()))
    return alias(source->device, keys_of(source->device), result);
  TORCH_CHECK_NOT_IMPLEMENTED(
      result.numel() == 0 || result.storage().data() != nullptr, name,
      " gives a tensor without memory, which simulated devices do not have; run it on the CPU");
  const c10::DeviceGuard guard(device);
  at::Tensor out = empty_on_device(result.sizes(), result.strides(), result.scalar_type());
  const size_t bytes = out.storage().nbytes();
  if (result.numel() > 0) fill(out.mutable_data_ptr(), result.const_data_ptr(), bytes);
  if (result.is_conj()) out._set_conj(true);
  if (result.is_neg()) out._set_neg(true);
  return out;
}

}  // namespace bellows::sim
