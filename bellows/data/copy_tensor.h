// From a buffer of the user's to a tensor of its own.
#pragma once

#include <cstddef>
#include <span>

#include <ATen/core/Tensor.h>

namespace bellows::data {

/// A CPU tensor in memory of its own with the values at `values`: for samples made from what a
/// decoder, a camera or a std::vector holds. (LibTorch's from_blob shares the buffer, which then
/// must outlive the tensor and all its views.) Throws ValueError where `sizes` does not have
/// `count` elements, or one is negative. Thread-safe.
at::Tensor copy_tensor(const void* values, size_t count, at::IntArrayRef sizes,
                       at::ScalarType type);

/// The same with the type of the values: float, int64_t, uint8_t, c10::Half, …
template <class T>
at::Tensor copy_tensor(std::span<const T> values, at::IntArrayRef sizes) {
  return copy_tensor(values.data(), values.size(), sizes, c10::CppTypeToScalarType<T>::value);
}

}  // namespace bellows::data
