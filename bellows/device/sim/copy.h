// Copies to, from and between simulated devices. Internal.
#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::sim {

/// aten::_copy_from: `to` gets the values of `from`, in its own type and layout. Behind the
/// program's back where LibTorch's CUDA copies are: within and between devices, and with
/// non_blocking to and from pinned memory.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking);

}  // namespace bellows::sim
