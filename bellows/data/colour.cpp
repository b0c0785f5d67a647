#include <cmath>

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/image_check.h"
#include "bellows/data/transforms.h"

namespace bellows::data {
namespace {

void check_colour(const char* what, const at::Tensor& image, double value, double low,
                  double high) {
  check_image(what, image);
  if (image.size(-3) != 1 && image.size(-3) != 3) {
    throw ValueError(concat(what, ": got ", image.size(-3), " channels, expected 1 or 3"));
  }
  if (!(value >= low && value <= high))
    throw ValueError(concat(what, ": got ", value, ", expected ", low, " to ", high));
}

// factor x image + (1 - factor) x other, in the image's range and type.
at::Tensor blend(const at::Tensor& image, const at::Tensor& other, double factor) {
  const double most = image.is_floating_point() ? 1 : 255;
  return image.mul(factor).add_(other, 1 - factor).clamp_(0, most).to(image.scalar_type());
}

// As torchvision: of bytes, grey is rounded down before it is used.
at::Tensor grey_for(const at::Tensor& image) {
  const at::Tensor grey = to_grey(image);
  return image.is_floating_point() ? grey : grey.floor();
}

}  // namespace

at::Tensor to_grey(const at::Tensor& image) {
  check_colour("to_grey", image, 0, 0, 0);
  const at::Tensor real = image.is_floating_point() ? image : image.to(at::kFloat);
  if (image.size(-3) == 1) return real;
  return real.select(-3, 0)
      .mul(0.2989)
      .add_(real.select(-3, 1), 0.587)
      .add_(real.select(-3, 2), 0.114)
      .unsqueeze(-3);
}

at::Tensor adjust_brightness(const at::Tensor& image, double factor) {
  check_colour("adjust_brightness", image, factor, 0, HUGE_VAL);
  const double most = image.is_floating_point() ? 1 : 255;
  return image.mul(factor).clamp_(0, most).to(image.scalar_type());
}

at::Tensor adjust_contrast(const at::Tensor& image, double factor) {
  check_colour("adjust_contrast", image, factor, 0, HUGE_VAL);
  return blend(image, grey_for(image).mean({-3, -2, -1}, /*keepdim=*/true), factor);
}

at::Tensor adjust_saturation(const at::Tensor& image, double factor) {
  check_colour("adjust_saturation", image, factor, 0, HUGE_VAL);
  if (image.size(-3) == 1) return image;
  return blend(image, grey_for(image), factor);
}

// Hue, saturation and value as A. R. Smith, "Color gamut transform pairs", SIGGRAPH 1978; back by
// v - v s max(0, min(k, 4 - k, 1)) with k = n + 6 h modulo 6, n = 5, 3, 1.
at::Tensor adjust_hue(const at::Tensor& image, double turn) {
  check_colour("adjust_hue", image, turn, -0.5, 0.5);
  if (image.size(-3) == 1) return image;
  const at::Tensor real =
      to_float(image, image.is_floating_point() ? image.scalar_type() : at::kFloat);
  const at::Tensor r = real.select(-3, 0), g = real.select(-3, 1), b = real.select(-3, 2);
  const at::Tensor most = real.amax(-3), range = most.sub(real.amin(-3));
  const at::Tensor safe = at::where(range.eq(0), 1, range);
  const at::Tensor sixth =
      at::where(most.eq(r), g.sub(b).div(safe),
                at::where(most.eq(g), b.sub(r).div(safe).add(2), r.sub(g).div(safe).add(4)));
  const at::Tensor hue = sixth.add(6 * turn);
  std::vector<at::Tensor> channels;
  for (const int n : {5, 3, 1}) {
    const at::Tensor k = hue.add(n).remainder(6);
    channels.push_back(most.sub(range.mul(at::minimum(k, k.neg().add(4)).clamp(0, 1))));
  }
  const at::Tensor result = at::stack(channels, -3);
  if (image.is_floating_point()) return result;
  return result.mul(255).round_().clamp_(0, 255).to(at::kByte);
}

}  // namespace bellows::data
