#include "bellows/device/crop_flip_normalize.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/cuda/crop_flip_normalize_element.h"
#include "bellows/device/cuda_module.h"
#include "bellows/device/device.h"
#include "bellows/device/stream.h"

namespace bellows {
namespace {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw ValueError(concat("crop_flip_normalize: ", parts...));
}

std::string text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return concat(tensor.scalar_type(), " of shape ", tensor.sizes());
}

void check_images(const at::Tensor& images) {
  if (images.defined() && images.scalar_type() == at::kByte && images.dim() == 4) return;
  fail("got ", text(images), ", expected uint8 of shape [images, height, width, channels]");
}

void check_size(int64_t channels, int64_t height, int64_t width) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (height < 1 || width < 1 || height > kMost || width > kMost || channels < 1 ||
      height * width > kMost / channels) {
    fail("got windows of ", height, " x ", width, " with ", channels,
         " channels, expected 1 or more of each and less than 2^31 values");
  }
}

void check_type(at::ScalarType type) {
  if (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) return;
  fail("got type ", type, ", expected Float, Half or BFloat16");
}

void check_out(const at::Tensor& images, const at::Tensor& out) {
  if (!out.defined() || out.dim() != 4 || out.size(0) != images.size(0) ||
      out.size(1) != images.size(3) || out.device() != images.device()) {
    fail("got an output that is ", text(out),
         out.defined() ? concat(" on ", device_name(out.device())) : "", ", expected shape [",
         images.size(0), ", ", images.size(3), ", height, width] on ",
         device_name(images.device()));
  }
  check_type(out.scalar_type());
  if (!out.is_contiguous() && !out.is_contiguous(at::MemoryFormat::ChannelsLast))
    fail("got an output with strides ", out.strides(),
         ", expected a dense one, its channels first or last");
}

void check_counts(const at::Tensor& images, std::span<const CropWindow> windows,
                  std::span<const float> mean, std::span<const float> std) {
  const int64_t channels = images.size(3);
  if (std::ssize(windows) != images.size(0))
    fail("got ", windows.size(), " windows for ", images.size(0), " images, expected one for each");
  if (std::ssize(mean) != channels || std::ssize(std) != channels ||
      channels > kMaxNormalizeChannels) {
    fail("got ", mean.size(), " means and ", std.size(), " standard deviations for images of ",
         channels, " channels, expected one of each per channel, at most ", kMaxNormalizeChannels);
  }
  if (std::ranges::find(std, 0.0F) != std.end()) fail("got a standard deviation of 0");
}

CropShape shape_of(const at::Tensor& images, const at::Tensor& out, uint8_t fill) {
  return {.image_stride = images.stride(0),
          .row_stride = images.stride(1),
          .column_stride = images.stride(2),
          .channel_stride = images.stride(3),
          .in_height = images.size(1),
          .in_width = images.size(2),
          .images = images.size(0),
          .channels = static_cast<int32_t>(out.size(1)),
          .height = static_cast<int32_t>(out.size(2)),
          .width = static_cast<int32_t>(out.size(3)),
          .channels_last = !out.is_contiguous(),
          .fill = fill};
}

// A byte has 256 values: each is computed once for each channel, and the images are looked up.
template <class T>
using Table = std::array<T, 256>;

template <class T>
std::vector<Table<T>> tables(std::span<const float> mean, std::span<const float> std) {
  std::vector<Table<T>> result(mean.size());
  for (size_t c = 0; c < result.size(); ++c) {
    for (int value = 0; value < 256; ++value)
      result[c][value] =
          static_cast<T>(normalize_element(static_cast<uint8_t>(value), mean[c], std[c]));
  }
  return result;
}

// Steps that the compiler knows are cheaper than ones that it does not.
template <int64_t kTo, int64_t kFrom, class T>
void look_up_by(const Table<T>& table, const uint8_t* from, int64_t from_step, T* to,
                int64_t to_step, int64_t count) {
  const int64_t a = kFrom != 0 ? kFrom : from_step, b = kTo != 0 ? kTo : to_step;
  for (int64_t i = 0; i < count; ++i) to[i * b] = table[from[i * a]];
}

template <class T>
void look_up(const Table<T>& table, const uint8_t* from, int64_t from_step, T* to, int64_t to_step,
             int64_t count) {
  if (to_step != 1) return look_up_by<0, 0>(table, from, from_step, to, to_step, count);
  switch (from_step) {
    case 1:
      return look_up_by<1, 1>(table, from, from_step, to, to_step, count);
    case -1:
      return look_up_by<1, -1>(table, from, from_step, to, to_step, count);
    case 3:
      return look_up_by<1, 3>(table, from, from_step, to, to_step, count);
    case -3:
      return look_up_by<1, -3>(table, from, from_step, to, to_step, count);
    default:
      return look_up_by<1, 0>(table, from, from_step, to, to_step, count);
  }
}

template <class T>
void fill_row(T value, T* to, int64_t step, int64_t begin, int64_t end) {
  for (int64_t x = begin; x < end; ++x) to[x * step] = value;
}

// Columns [begin, end) of a window lie in the image.
struct Inside {
  int64_t begin, end;
};
Inside inside(const CropShape& shape, const CropWindow& window) {
  const int64_t width = shape.width;
  const int64_t left = window.left;
  const int64_t begin = std::clamp<int64_t>(-left, 0, width);
  const int64_t end = std::clamp<int64_t>(shape.in_width - left, begin, width);
  if (window.flip) return {width - end, width - begin};
  return {begin, end};
}

template <class T>
void crop_image(const uint8_t* image, T* out, const CropShape& shape, const CropWindow& window,
                const std::vector<Table<T>>& values) {
  const Inside part = inside(shape, window);
  const int64_t first = source_column(shape, window, static_cast<int32_t>(part.begin));
  const int64_t from_step = window.flip ? -shape.column_stride : shape.column_stride;
  const int64_t to_step = shape.channels_last ? shape.channels : 1;
  for (int32_t c = 0; c < shape.channels; ++c) {
    const Table<T>& table = values[static_cast<size_t>(c)];
    const T outside = table[shape.fill];
    for (int32_t y = 0; y < shape.height; ++y) {
      T* to = shape.channels_last ? out + int64_t{y} * shape.width * shape.channels + c
                                  : out + (int64_t{c} * shape.height + y) * shape.width;
      const int64_t row = source_row(window, y);
      if (row < 0 || row >= shape.in_height || part.begin == part.end) {
        fill_row(outside, to, to_step, 0, shape.width);
        continue;
      }
      fill_row(outside, to, to_step, 0, part.begin);
      look_up(
          table,
          image + row * shape.row_stride + first * shape.column_stride + c * shape.channel_stride,
          from_step, to + part.begin * to_step, to_step, part.end - part.begin);
      fill_row(outside, to, to_step, part.end, shape.width);
    }
  }
}

template <class T>
void crop_images(const at::Tensor& images, const at::Tensor& out, const CropShape& shape,
                 std::span<const CropWindow> windows, std::span<const float> mean,
                 std::span<const float> std) {
  const auto values = tables<T>(mean, std);
  const auto* in = images.const_data_ptr<uint8_t>();
  auto* to = out.mutable_data_ptr<T>();
  const int64_t size = out.numel() / shape.images;
  for (int64_t n = 0; n < shape.images; ++n)
    crop_image(in + n * shape.image_stride, to + n * size, shape, windows[static_cast<size_t>(n)],
               values);
}

void crop_cpu(const at::Tensor& images, const at::Tensor& out, const CropShape& shape,
              std::span<const CropWindow> windows, std::span<const float> mean,
              std::span<const float> std) {
  if (out.scalar_type() == at::kHalf)
    return crop_images<at::Half>(images, out, shape, windows, mean, std);
  if (out.scalar_type() == at::kBFloat16)
    return crop_images<at::BFloat16>(images, out, shape, windows, mean, std);
  crop_images<float>(images, out, shape, windows, mean, std);
}

}  // namespace

void crop_flip_normalize_out(const at::Tensor& images, std::span<const CropWindow> windows,
                             std::span<const float> mean, std::span<const float> std, uint8_t fill,
                             const at::Tensor& out) {
  check_images(images);
  check_counts(images, windows, mean, std);
  check_out(images, out);
  check_size(out.size(1), out.size(2), out.size(3));
  const CropShape shape = shape_of(images, out, fill);
  const c10::Device device = images.device();
  if (shape.images == 0 && (device.is_cpu() || device.is_cuda())) return;
  if (device.is_cpu()) {
    crop_cpu(images, out, shape, windows, mean, std);
  } else if (device.type() == c10::DeviceType::HPU) {  // simulated: the CPU's, in stream order
    Stream::current(device).synchronize();
    if (shape.images > 0) crop_cpu(images, out, shape, windows, mean, std);
  } else if (device.is_cuda() && cuda_module() != nullptr) {
    cuda_module()->crop_flip_normalize(images, out, shape, windows, mean, std);
  } else if (device.is_cuda()) {
    const CudaReport report = cuda_report();
    throw EnvironmentError(
        concat("crop_flip_normalize: no CUDA module: ", report.sentence, "; ", report.remedy));
  } else {
    fail("got images on ", device_name(device), ", expected cpu, cuda or sim");
  }
}

at::Tensor crop_flip_normalize(const at::Tensor& images, std::span<const CropWindow> windows,
                               std::span<const float> mean, std::span<const float> std,
                               const CropFlipNormalizeOptions& options) {
  check_images(images);
  check_type(options.type);
  check_size(images.size(3), options.height, options.width);
  const at::Tensor out = at::empty(
      {images.size(0), images.size(3), options.height, options.width},
      images.options().dtype(options.type),
      options.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  crop_flip_normalize_out(images, windows, mean, std, options.fill, out);
  return out;
}

}  // namespace bellows
