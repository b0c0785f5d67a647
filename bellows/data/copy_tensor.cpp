#include "bellows/data/copy_tensor.h"

#include <cstring>

#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {

at::Tensor copy_tensor(const void* values, size_t count, at::IntArrayRef sizes,
                       at::ScalarType type) {
  int64_t elements = 1;
  bool fits = true;
  for (const int64_t size : sizes)
    fits = fits && size >= 0 && !__builtin_mul_overflow(elements, size, &elements);
  if (!fits || static_cast<size_t>(elements) != count) {
    throw ValueError(
        concat("copy_tensor: got ", count, " values, expected as many as shape ", sizes, " has"));
  }
  at::Tensor result = at::empty(sizes, at::TensorOptions(type));
  if (count > 0) std::memcpy(result.mutable_data_ptr(), values, result.nbytes());
  return result;
}

}  // namespace bellows::data
