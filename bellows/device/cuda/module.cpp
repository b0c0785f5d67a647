// libbellows_cuda: where CUDA code meets ATen.
#include <algorithm>

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/version.h>

#include "bellows/device/cuda/crop_flip_normalize.h"
#include "bellows/device/cuda/normalize.h"
#include "bellows/device/cuda_module.h"

namespace bellows {
namespace {

NormalizeStatistics by_value(std::span<const float> mean, std::span<const float> std) {
  NormalizeStatistics statistics;
  std::ranges::copy(mean, statistics.mean);
  std::ranges::copy(std, statistics.std);
  return statistics;
}

void normalize_u8(const at::Tensor& in, const at::Tensor& out, ChannelLayout layout,
                  std::span<const float> mean, std::span<const float> std) {
  const c10::DeviceGuard guard(in.device());
  launch_normalize_u8(in.const_data_ptr<uint8_t>(), out.mutable_data_ptr<float>(), in.numel(),
                      layout.inner, static_cast<int>(layout.channels), by_value(mean, std),
                      c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

CropType crop_type(at::ScalarType type) {
  if (type == at::kHalf) return CropType::float16;
  return type == at::kBFloat16 ? CropType::bfloat16 : CropType::float32;
}

void crop_flip_normalize(const at::Tensor& in, const at::Tensor& out, const CropShape& shape,
                         std::span<const CropWindow> windows, std::span<const float> mean,
                         std::span<const float> std) {
  const c10::DeviceGuard guard(in.device());
  launch_crop_flip_normalize(in.const_data_ptr<uint8_t>(), out.mutable_data_ptr(),
                             crop_type(out.scalar_type()), shape, windows.data(),
                             by_value(mean, std), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

constexpr CudaModule kModule{.libtorch_version = TORCH_VERSION,
                             .archs = BELLOWS_CUDA_ARCHS,
                             .normalize_u8 = &normalize_u8,
                             .crop_flip_normalize = &crop_flip_normalize};

}  // namespace
}  // namespace bellows

extern "C" __attribute__((visibility("default"))) const bellows::CudaModule* bellows_cuda_module() {
  return &bellows::kModule;
}
