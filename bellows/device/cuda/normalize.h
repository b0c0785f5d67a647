// Launch of normalize() on raw pointers.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "bellows/device/cuda/normalize_element.h"

namespace bellows {

/// out[i] = normalize_element(in[i], …) for `count` elements; element i belongs to channel (i /
/// inner) % channels. Enqueued on `stream` of the current device; the caller asks cudaGetLastError.
void launch_normalize_u8(const uint8_t* in, float* out, int64_t count, int64_t inner, int channels,
                         const NormalizeStatistics& statistics, cudaStream_t stream);

}  // namespace bellows
