// A preprocessing kernel of your own: CUDA, and its twin for the CPU and simulated devices. Prints
// for each device whether the values are right. docs/cuda-kernels.md explains it. To build it,
// after `make install` in Bellows' own folder:
//
//   cmake -S examples/own_kernel -B build/own_kernel -DCMAKE_PREFIX_PATH=$HOME/.local
//         -DLIBTORCH=/path/to/libtorch
//   cmake --build build/own_kernel && build/own_kernel/own_kernel
#include <iostream>
#include <stdexcept>

#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>

#include "standardize.h"
#include "standardize_element.h"
#include <bellows/device/device.h>
#include <bellows/device/init.h>
#include <bellows/device/stream.h>

void standardize_cpu(const uint8_t* in, float* out, int64_t images, int64_t count) {
  for (int64_t n = 0; n < images; ++n, in += count, out += count) {
    Sums sums;
    for (int64_t i = 0; i < count; ++i) sums = with(sums, in[i]);
    const Scale scale = scale_of(sums, static_cast<uint64_t>(count));
    for (int64_t i = 0; i < count; ++i) out[i] = standardized(in[i], scale);
  }
}

/// uint8 [N, …] to float32 of the same shape: each image with mean 0 and standard deviation 1.
at::Tensor standardize(const at::Tensor& images) {
  if (images.scalar_type() != at::kByte || images.dim() < 2 || images.numel() == 0 ||
      images.numel() / images.size(0) > 1 << 24)
    throw std::invalid_argument("standardize: expected uint8 [N, …], up to 2^24 values an image");
  // The kernel counts through memory: views with other strides are copied first.
  const at::Tensor in = images.contiguous();
  const at::Tensor out = at::empty(in.sizes(), in.options().dtype(at::kFloat));
  const int64_t count = in.numel() / in.size(0);
  const bellows::Stream stream = bellows::Stream::current(in.device());
  if (!in.is_cuda()) {
    stream.synchronize();  // simulated devices: copies may still be under way; the CPU: nothing
    standardize_cpu(in.const_data_ptr<uint8_t>(), out.mutable_data_ptr<float>(), in.size(0), count);
    return out;
  }
#ifdef OWN_KERNEL_CUDA
  const bellows::DeviceGuard guard(in.device());
  const char* error =
      launch_standardize(in.const_data_ptr<uint8_t>(), out.mutable_data_ptr<float>(), in.size(0),
                         count, stream.native_handle());
  if (error != nullptr) throw std::runtime_error(std::string("standardize: ") + error);
  return out;
#else
  throw std::runtime_error("standardize: was built without nvcc");
#endif
}

int main() {
  bellows::init();
  const at::Tensor images = at::randint(256, {300, 3, 33, 47}, at::kByte);
  const at::Tensor flat = images.flatten(1).to(at::kDouble);
  const at::Tensor expected =
      flat.sub(flat.mean(1, true)).div(flat.std(1, 0, true)).view_as(images);
  const at::Tensor twin = standardize(images);
  if (twin.sub(expected).abs().max().item<double>() > 1e-5) return 1;
  std::cout << "cpu: as LibTorch's operators\n";
  for (const bellows::DeviceInfo& info : bellows::list_devices()) {
    if (info.device.is_cpu()) continue;
    const at::Tensor there = standardize(images.to(info.device));
    if (!there.cpu().equal(twin)) return 1;
    std::cout << bellows::device_name(info.device) << ": as the CPU, bit by bit\n";
  }
}
