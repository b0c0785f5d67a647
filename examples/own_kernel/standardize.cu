#include <cuda_runtime.h>

#include "standardize.h"
#include "standardize_element.h"

namespace {

constexpr int kThreads = 256;  // a power of two, which the reduction halves

// A block for each image. Neighbouring threads take neighbouring values, in reading as in writing,
// so that a warp's 32 accesses are one piece of memory.
__global__ void standardize_kernel(const uint8_t* __restrict__ in, float* __restrict__ out,
                                   int64_t count) {
  __shared__ uint64_t values[kThreads], squares[kThreads];
  __shared__ Scale scale;
  const uint8_t* image = in + blockIdx.x * count;
  Sums sums;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sums = with(sums, image[i]);

  values[threadIdx.x] = sums.values;
  squares[threadIdx.x] = sums.squares;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();  // all threads come here in every round, also those without work
    if (threadIdx.x < half) {
      values[threadIdx.x] += values[threadIdx.x + half];
      squares[threadIdx.x] += squares[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) scale = scale_of({values[0], squares[0]}, count);
  __syncthreads();

  float* to = out + blockIdx.x * count;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) to[i] = standardized(image[i], scale);
}

}  // namespace

const char* launch_standardize(const uint8_t* in, float* out, int64_t images, int64_t count,
                               void* stream) {
  standardize_kernel<<<static_cast<unsigned>(images), kThreads, 0,
                       static_cast<cudaStream_t>(stream)>>>(in, out, count);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
