// The arithmetic of normalize() on one value: the same for the CPU (normalize.cpp) and CUDA
// (normalize.cu).
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define BELLOWS_HOST_DEVICE __host__ __device__
#else
#define BELLOWS_HOST_DEVICE
#endif

namespace bellows {

/// mean and std of the channels are passed to the kernel by value, hence the bound.
inline constexpr int kMaxNormalizeChannels = 256;

/// Passed by value: no copy to the device to wait for.
struct NormalizeStatistics {
  float mean[kMaxNormalizeChannels];
  float std[kMaxNormalizeChannels];
};

BELLOWS_HOST_DEVICE inline float normalize_element(uint8_t value, float mean, float std) {
  return (static_cast<float>(value) / 255.0F - mean) / std;
}

}  // namespace bellows
