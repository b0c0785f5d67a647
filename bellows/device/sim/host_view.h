// The tensors of a simulated device as the CPU's operators see them. Internal.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace bellows::sim {

/// Host views of the tensors of one call: the same memory, as CPU tensors. Tensors that share
/// memory, and tensors that are one, do so there too.
class HostViews {
 public:
  at::Tensor of(const at::Tensor& tensor);
  /// For a tensor that the call may have changed: gives it its view's sizes, strides, offset and
  /// memory.
  void write_back(const at::Tensor& tensor, const at::Tensor& view) const;
  /// A result of the call, on the device: one of the call's tensors, a view of one, or a copy in
  /// new memory. For messages: the operator's name. Throws LibTorch's error for a result that is
  /// not strided.
  at::Tensor to_device(const at::Tensor& result, c10::Device device, const std::string& name) const;

 private:
  struct Shared {
    c10::Storage device;
    c10::Storage host;
    const void* pointer;  // of both, when the view was made
    size_t bytes;
  };
  const Shared* by_host(const c10::Storage& host) const;
  c10::DispatchKeySet keys_of(const c10::Storage& device) const;
  const Shared& shared(const c10::Storage& device);

  std::vector<Shared> storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;  // on the device, its view
};

/// New, uninitialised memory of the current device.
at::Tensor empty_on_device(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType type);

}  // namespace bellows::sim
