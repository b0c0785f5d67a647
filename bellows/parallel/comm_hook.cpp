#include "bellows/parallel/comm_hook.h"

#include <ATen/ops/view_as_real.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::parallel {
namespace {

CommHook compress_hook(at::ScalarType type) {
  return [type](const Group& group, GradBucket& bucket) {
    if (bucket.tensor.is_complex())
      throw ValueError(concat("Gradients of ", bucket.names.front(),
                              " are complex: they cannot be compressed to ", type));
    const at::Tensor small = bucket.tensor.to(type).div_(bucket.divisor);
    const Work work = group.async().all_reduce(small);
    return Reduction([work, small, tensor = bucket.tensor] {
      work.wait();
      tensor.copy_(small);
      return tensor;
    });
  };
}

}  // namespace

CommHook all_reduce_hook() {
  return [](const Group& group, GradBucket& bucket) {
    const at::Tensor sum =
        bucket.tensor.is_complex() ? at::view_as_real(bucket.tensor) : bucket.tensor;
    sum.mul_(1.0 / static_cast<double>(bucket.divisor));
    return Reduction(group.async().all_reduce(sum), bucket);
  };
}

CommHook fp16_compress_hook() {
  return compress_hook(at::kHalf);
}
CommHook bf16_compress_hook() {
  return compress_hook(at::kBFloat16);
}

}  // namespace bellows::parallel
