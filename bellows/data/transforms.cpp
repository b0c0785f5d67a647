#include "bellows/data/transforms.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/image_check.h"

namespace bellows::data {
namespace {

// Into the middle: Python's round, which takes halves to even.
int64_t middle(int64_t outer, int64_t inner) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(outer - inner) / 2));
}

void check_size(const char* what, int64_t height, int64_t width) {
  if (height < 1 || width < 1)
    throw ValueError(
        concat(what, ": got a size of ", height, " x ", width, ", expected 1 or more"));
}

at::Tensor statistics(std::span<const double> values, const at::Tensor& image) {
  return at::tensor(at::ArrayRef<double>(values.data(), values.size()),
                    image.options().dtype(image.scalar_type()))
      .view({static_cast<int64_t>(values.size()), 1, 1});
}

}  // namespace

void check_image(const char* what, const at::Tensor& image) {
  if (!image.defined()) throw ValueError(concat(what, ": got an undefined tensor"));
  const bool typed = image.scalar_type() == at::kByte || image.is_floating_point();
  if (typed && image.dim() >= 3) return;
  throw ValueError(concat(what, ": got ", image.scalar_type(), " of shape ", image.sizes(),
                          ", expected uint8 or floating point of shape [..., channels, height, "
                          "width]"));
}

at::Tensor to_float(const at::Tensor& image, at::ScalarType type) {
  check_image("to_float", image);
  if (!c10::isFloatingType(type))
    throw ValueError(concat("to_float: got type ", type, ", expected a floating-point one"));
  if (image.is_floating_point()) return image.to(type);
  return image.to(type).div_(255);
}

at::Tensor normalize_channels(const at::Tensor& image, std::span<const double> mean,
                              std::span<const double> std) {
  check_image("normalize_channels", image);
  if (!image.is_floating_point())
    throw ValueError("normalize_channels: got uint8, expected floating point; use to_float before");
  for (const auto& [values, name] : {std::pair{mean, "means"}, {std, "standard deviations"}}) {
    if (std::ssize(values) != image.size(-3) && values.size() != 1) {
      throw ValueError(concat("normalize_channels: got ", values.size(), " ", name,
                              ", expected 1 or ", image.size(-3), ", one for each channel"));
    }
  }
  if (std::find(std.begin(), std.end(), 0.0) != std.end())
    throw ValueError("normalize_channels: got a standard deviation of 0");
  return image.sub(statistics(mean, image)).div_(statistics(std, image));
}

at::Tensor resize(const at::Tensor& image, int64_t height, int64_t width) {
  check_image("resize", image);
  check_size("resize", height, width);
  check_size("resize: the image", image.size(-2), image.size(-1));
  if (image.size(-2) == height && image.size(-1) == width) return image;
  const at::Tensor batch =
      image.dim() == 4 ? image
                       : image.reshape({-1, image.size(-3), image.size(-2), image.size(-1)});
  // LibTorch's kernel for bytes gives wrong values, or an internal error, where the width
  // becomes 1.
  const bool bytes = image.scalar_type() == at::kByte;
  const bool native = bytes
                          ? image.is_cpu() && width > 1
                          : image.scalar_type() == at::kFloat || image.scalar_type() == at::kDouble;
  at::Tensor out = at::_upsample_bilinear2d_aa(native ? batch : batch.to(at::kFloat),
                                               {height, width}, /*align_corners=*/false);
  if (!native && bytes) out.round_();
  out = out.to(image.scalar_type());
  std::vector<int64_t> sizes = image.sizes().vec();
  sizes[sizes.size() - 2] = height;
  sizes[sizes.size() - 1] = width;
  return image.dim() == 4 ? out : out.reshape(sizes);
}

at::Tensor resize_shorter(const at::Tensor& image, int64_t size) {
  check_image("resize", image);
  check_size("resize", size, size);
  check_size("resize: the image", image.size(-2), image.size(-1));
  const int64_t height = image.size(-2), width = image.size(-1);
  if (height <= width) return resize(image, size, size * width / height);
  return resize(image, size * height / width, size);
}

at::Tensor crop(const at::Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width,
                double fill) {
  check_image("crop", image);
  check_size("crop", height, width);
  const auto inside = [](int64_t begin, int64_t length, int64_t size) {
    const int64_t from = std::clamp<int64_t>(begin, 0, size);
    return std::pair{from, std::clamp<int64_t>(begin + length, from, size) - from};
  };
  const auto [row, rows] = inside(top, height, image.size(-2));
  const auto [column, columns] = inside(left, width, image.size(-1));
  const at::Tensor part = image.narrow(-2, row, rows).narrow(-1, column, columns);
  if (rows == height && columns == width) return part;
  std::vector<int64_t> sizes = image.sizes().vec();
  sizes[sizes.size() - 2] = height;
  sizes[sizes.size() - 1] = width;
  const at::Tensor result = at::full(sizes, fill, image.options());
  if (rows > 0 && columns > 0) {
    result.narrow(-2, row - top, rows).narrow(-1, column - left, columns).copy_(part);
  }
  return result;
}

at::Tensor center_crop(const at::Tensor& image, int64_t height, int64_t width) {
  check_image("center_crop", image);
  check_size("center_crop", height, width);
  // Where it must be filled up, torchvision puts the smaller half above and to the left.
  const auto begin = [](int64_t size, int64_t wanted) {
    return size < wanted ? -((wanted - size) / 2) : middle(size, wanted);
  };
  return crop(image, begin(image.size(-2), height), begin(image.size(-1), width), height, width);
}

at::Tensor flip_horizontal(const at::Tensor& image) {
  check_image("flip", image);
  return image.flip(-1);
}

at::Tensor erase(const at::Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width,
                 double value) {
  check_image("erase", image);
  if (top < 0 || left < 0 || height < 0 || width < 0 || top + height > image.size(-2) ||
      left + width > image.size(-1)) {
    throw ValueError(concat("erase: got rows ", top, " to ", top + height, " and columns ", left,
                            " to ", left + width, ", expected a part of ", image.size(-2), " x ",
                            image.size(-1)));
  }
  at::Tensor result = image.clone();
  result.narrow(-2, top, height).narrow(-1, left, width).fill_(value);
  return result;
}

}  // namespace bellows::data
