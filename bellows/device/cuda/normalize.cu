#include <algorithm>

#include "bellows/device/cuda/normalize.h"

namespace bellows {
namespace {

constexpr int kThreads = 256;
// Enough blocks to fill any device; each thread then strides over the rest.
constexpr int64_t kMaxBlocks = 65536;

__global__ void normalize_u8_kernel(const uint8_t* __restrict__ in, float* __restrict__ out,
                                    int64_t count, int64_t inner, int channels,
                                    const __grid_constant__ NormalizeStatistics statistics) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const int channel = static_cast<int>(i / inner % channels);
    out[i] = normalize_element(in[i], statistics.mean[channel], statistics.std[channel]);
  }
}

}  // namespace

void launch_normalize_u8(const uint8_t* in, float* out, int64_t count, int64_t inner, int channels,
                         const NormalizeStatistics& statistics, cudaStream_t stream) {
  const int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMaxBlocks);
  normalize_u8_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(in, out, count, inner,
                                                                              channels, statistics);
}

}  // namespace bellows
