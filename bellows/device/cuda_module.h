// The table by which the core library reaches CUDA code. Internal: programs use the functions that
// dispatch to it (normalize.h). No CUDA header here: the core is compiled without a toolkit.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "bellows/device/cuda/crop_flip_normalize_element.h"

namespace bellows {

/// Per-channel arithmetic on contiguous memory: element i belongs to channel (i / inner) %
/// channels.
struct ChannelLayout {
  int64_t channels = 0;
  int64_t inner = 0;  // H * W for channels first, 1 for channels last
};

/// Version of the table below; core and module come from one build, so any difference is an error.
inline constexpr int kCudaModuleVersion = 2;

/// What libbellows_cuda.so gives. Plain functions: the module is opened at run time and never
/// closed.
struct CudaModule {
  int version = kCudaModuleVersion;
  const char* libtorch_version;  // it was compiled against
  const char* archs;             // compute capabilities it has kernels for: "8.0 9.0+PTX"
  /// `in` (uint8) and `out` (float32) are contiguous, on one CUDA device, of the same size.
  /// Enqueued on the current stream of that device.
  void (*normalize_u8)(const at::Tensor& in, const at::Tensor& out, ChannelLayout layout,
                       std::span<const float> mean, std::span<const float> std);
  /// `shape` describes `in` (uint8) and `out` (float32, float16 or bfloat16), on one CUDA device.
  /// Enqueued on the current stream of that device; `windows` were read when it returns.
  void (*crop_flip_normalize)(const at::Tensor& in, const at::Tensor& out, const CropShape& shape,
                              std::span<const CropWindow> windows, std::span<const float> mean,
                              std::span<const float> std);
};

/// The loaded module, or null.
const CudaModule* cuda_module();

}  // namespace bellows

/// The module's only exported function.
extern "C" const bellows::CudaModule* bellows_cuda_module();
