#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "bellows/device/cuda/crop_flip_normalize.h"

namespace bellows {
namespace {

constexpr int kThreads = 256;

// A launch's windows go by value, as the statistics do: a copy from the host would wait for the
// stream. Parameters of a kernel have 4 KiB.
constexpr int64_t kMostImages = 128;
struct CropWindows {
  CropWindow of[kMostImages];
};
static_assert(sizeof(CropWindows) + sizeof(CropShape) + sizeof(NormalizeStatistics) < 4000);

__device__ void store(float value, float* to) {
  *to = value;
}
__device__ void store(float value, __half* to) {
  *to = __float2half_rn(value);
}
__device__ void store(float value, __nv_bfloat16* to) {
  *to = __float2bfloat16_rn(value);
}

// A row of blocks for each image, so that a window is the same for a whole block. Neighbouring
// threads write neighbouring elements; what they read is a byte each, of lines that the cache
// holds.
template <class T>
__global__ void crop_flip_normalize_kernel(const uint8_t* __restrict__ in, T* __restrict__ out,
                                           const __grid_constant__ CropShape shape,
                                           const __grid_constant__ CropWindows windows,
                                           const __grid_constant__ NormalizeStatistics statistics) {
  const int64_t values = int64_t{shape.channels} * shape.height * shape.width;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= values) return;
  store(crop_flip_normalize_element(in + blockIdx.y * shape.image_stride, shape,
                                    windows.of[blockIdx.y], statistics, static_cast<int32_t>(i)),
        out + blockIdx.y * values + i);
}

template <class T>
void launch(const uint8_t* in, void* out, const CropShape& shape, const CropWindow* windows,
            const NormalizeStatistics& statistics, cudaStream_t stream) {
  const int64_t values = int64_t{shape.channels} * shape.height * shape.width;
  const auto blocks = static_cast<unsigned>((values + kThreads - 1) / kThreads);
  for (int64_t first = 0; first < shape.images; first += kMostImages) {
    const int64_t images = std::min(shape.images - first, kMostImages);
    CropWindows part;
    std::copy_n(windows + first, images, part.of);
    crop_flip_normalize_kernel<<<dim3(blocks, static_cast<unsigned>(images)), kThreads, 0,
                                 stream>>>(in + first * shape.image_stride,
                                           static_cast<T*>(out) + first * values, shape, part,
                                           statistics);
  }
}

}  // namespace

void launch_crop_flip_normalize(const uint8_t* in, void* out, CropType type, const CropShape& shape,
                                const CropWindow* windows, const NormalizeStatistics& statistics,
                                cudaStream_t stream) {
  switch (type) {
    case CropType::float32:
      return launch<float>(in, out, shape, windows, statistics, stream);
    case CropType::float16:
      return launch<__half>(in, out, shape, windows, statistics, stream);
    case CropType::bfloat16:
      return launch<__nv_bfloat16>(in, out, shape, windows, statistics, stream);
  }
}

}  // namespace bellows
