#include "bellows/device/module.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include "bellows/device/move.h"

namespace bellows {
namespace {

// What `tensor` is to become: integers keep their type.
at::TensorOptions target(const at::Tensor& tensor, c10::Device device,
                         std::optional<c10::ScalarType> dtype) {
  const auto options = tensor.options().device(device);
  return dtype && tensor.is_floating_point() ? options.dtype(*dtype) : options;
}

at::Tensor moved(const at::Tensor& tensor, const at::TensorOptions& options, bool non_blocking) {
  if (tensor.is_meta() && options.device().type() != c10::kMeta)
    return at::empty_like(tensor, options);
  return tensor.to(options, non_blocking);
}

void move_registered(const at::Tensor& tensor, c10::Device device,
                     std::optional<c10::ScalarType> dtype, bool non_blocking) {
  if (!tensor.defined()) return;
  const at::Tensor data = moved(tensor, target(tensor, device, dtype), non_blocking);
  if (data.is_meta() == tensor.is_meta()) {
    tensor.set_data(data);
    return;
  }
  // set_data refuses Meta on one side; this is what it does, without that check.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
  if (auto* autograd = torch::autograd::impl::get_autograd_meta(tensor))
    autograd->grad_accumulator_.reset();
}

void move_gradient(const at::Tensor& parameter, c10::Device device,
                   std::optional<c10::ScalarType> dtype, bool non_blocking) {
  const at::Tensor& grad = parameter.grad();
  if (!grad.defined()) return;
  parameter.mutable_grad() = moved(grad, target(grad, device, dtype), non_blocking);
}

}  // namespace

void to(torch::nn::Module& module, c10::Device device, std::optional<c10::ScalarType> dtype,
        bool non_blocking) {
  const at::NoGradGuard no_grad;
  const auto parameters = module.parameters();
  for (const auto& tensor : parameters) move_registered(tensor, device, dtype, non_blocking);
  for (const auto& tensor : module.buffers()) move_registered(tensor, device, dtype, non_blocking);
  module.to(device, non_blocking);  // all registered is there already; an override brings the rest
  for (const auto& tensor : parameters) move_gradient(tensor, device, dtype, non_blocking);
}

}  // namespace bellows
