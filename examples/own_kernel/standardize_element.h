// The arithmetic of standardize(), for the CPU (main.cpp) and CUDA (standardize.cu): an image's
// values get mean 0 and standard deviation 1, as tf.image.per_image_standardization.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

/// Whole numbers add up to the same in any order: the CPU and every block of threads agree in all
/// bits. Exact for images of up to 2^24 values.
struct Sums {
  uint64_t values = 0;
  uint64_t squares = 0;
};
HOST_DEVICE inline Sums with(Sums sums, uint8_t value) {
  return {sums.values + value, sums.squares + uint64_t{value} * value};
}
HOST_DEVICE inline Sums operator+(Sums a, Sums b) {
  return {a.values + b.values, a.squares + b.squares};
}

struct Scale {
  float mean;
  float factor;
};
/// The deviation is at least 1 / sqrt(count): an image of one colour becomes 0.
HOST_DEVICE inline Scale scale_of(Sums sums, uint64_t count) {
  const auto n = static_cast<double>(count);
  const auto spread =
      static_cast<double>(count * sums.squares - sums.values * sums.values) / (n * n);
  const double deviation = sqrt(spread), least = 1 / sqrt(n);
  return {static_cast<float>(static_cast<double>(sums.values) / n),
          static_cast<float>(1 / (deviation > least ? deviation : least))};
}

HOST_DEVICE inline float standardized(uint8_t value, Scale scale) {
  return (static_cast<float>(value) - scale.mean) * scale.factor;
}
