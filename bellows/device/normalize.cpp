#include "bellows/device/normalize.h"

#include <algorithm>
#include <array>
#include <vector>

#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/cuda/normalize_element.h"
#include "bellows/device/cuda_module.h"
#include "bellows/device/device.h"
#include "bellows/device/stream.h"

namespace bellows {
namespace {

ChannelLayout layout_of(const at::Tensor& images, ChannelDim channels) {
  if (!images.defined() || images.scalar_type() != at::kByte ||
      (images.dim() != 3 && images.dim() != 4)) {
    const std::string got = images.defined()
                                ? concat(images.scalar_type(), " of shape ", images.sizes())
                                : "an undefined tensor";
    throw ValueError(concat("normalize: got ", got, ", expected uint8 with 3 or 4 dimensions"));
  }
  if (channels == ChannelDim::last) return {images.size(-1), 1};
  return {images.size(-3), images.size(-2) * images.size(-1)};
}

void check_statistics(int64_t channels, std::span<const float> mean, std::span<const float> std) {
  if (std::ssize(mean) != channels || std::ssize(std) != channels ||
      channels > kMaxNormalizeChannels) {
    throw ValueError(concat("normalize: got ", mean.size(), " means and ", std.size(),
                            " standard deviations for images of ", channels,
                            " channels, expected one of each per channel, at most ",
                            kMaxNormalizeChannels));
  }
  if (std::ranges::find(std, 0.0F) != std.end())
    throw ValueError("normalize: got a standard deviation of 0");
}

// A byte has 256 values: each is computed once for each channel, and the images are looked up.
void normalize_cpu(const at::Tensor& in, const at::Tensor& out, ChannelLayout layout,
                   std::span<const float> mean, std::span<const float> std) {
  std::vector<std::array<float, 256>> table(mean.size());
  for (size_t c = 0; c < table.size(); ++c) {
    for (int value = 0; value < 256; ++value) {
      table[c][value] = normalize_element(static_cast<uint8_t>(value), mean[c], std[c]);
    }
  }
  const auto* from = in.const_data_ptr<uint8_t>();
  auto* to = out.mutable_data_ptr<float>();
  const int64_t planes = in.numel() / layout.inner;
  for (int64_t plane = 0; plane < planes; ++plane) {
    const auto& values = table[plane % layout.channels];
    for (int64_t i = 0; i < layout.inner; ++i) *to++ = values[*from++];
  }
}

}  // namespace

at::Tensor normalize(const at::Tensor& images, std::span<const float> mean,
                     std::span<const float> std, ChannelDim channels) {
  const ChannelLayout layout = layout_of(images, channels);
  check_statistics(layout.channels, mean, std);
  const at::Tensor in = images.contiguous();
  at::Tensor out = at::empty(in.sizes(), in.options().dtype(at::kFloat));
  if (out.numel() == 0) return out;
  if (in.is_cpu()) {
    normalize_cpu(in, out, layout, mean, std);
  } else if (in.device().type() ==
             c10::DeviceType::HPU) {  // simulated: the CPU's, in the stream's order
    Stream::current(in.device()).synchronize();
    normalize_cpu(in, out, layout, mean, std);
  } else if (in.is_cuda() && cuda_module() != nullptr) {
    cuda_module()->normalize_u8(in, out, layout, mean, std);
  } else if (in.is_cuda()) {
    const CudaReport report = cuda_report();
    throw EnvironmentError(
        concat("normalize: no CUDA module: ", report.sentence, "; ", report.remedy));
  } else {
    throw ValueError(concat("normalize: got images on ", device_name(in.device()),
                            ", expected cpu, cuda or sim"));
  }
  return out;
}

}  // namespace bellows
