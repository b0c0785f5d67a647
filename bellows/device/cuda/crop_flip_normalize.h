// Launch of crop_flip_normalize() on raw pointers.
#pragma once

#include <cuda_runtime_api.h>

#include "bellows/device/cuda/crop_flip_normalize_element.h"

namespace bellows {

enum class CropType { float32, float16, bfloat16 };

/// Writes all shape.images images of `out`, whose elements are of `type`; `windows`, one for each,
/// lies on the host and was read when it returns. Enqueued on `stream` of the current device; the
/// caller asks cudaGetLastError.
void launch_crop_flip_normalize(const uint8_t* in, void* out, CropType type, const CropShape& shape,
                                const CropWindow* windows, const NormalizeStatistics& statistics,
                                cudaStream_t stream);

}  // namespace bellows
