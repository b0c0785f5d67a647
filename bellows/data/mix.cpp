#include "bellows/data/mix.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/one_hot.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

at::Tensor soft_targets(const char* what, const at::Tensor& images, const at::Tensor& targets,
                        int64_t classes) {
  if (classes < 1)
    throw ValueError(concat(what, ": got ", classes, " classes, expected 1 or more"));
  if (!images.defined() || !targets.defined() || images.dim() < 2 || targets.dim() < 1 ||
      targets.size(0) != images.size(0)) {
    throw ValueError(concat(what, ": expected images [N, ...] and as many targets"));
  }
  if (targets.is_floating_point() && targets.dim() == 2 && targets.size(1) == classes)
    return targets;
  if (targets.scalar_type() != at::kLong || targets.dim() != 1) {
    throw ValueError(concat(what, ": got targets ", targets.scalar_type(), " ", targets.sizes(),
                            ", expected Long [N] or floating point [N, ", classes, "]"));
  }
  if (targets.numel() > 0) {
    const auto least = targets.min().item<int64_t>(), most = targets.max().item<int64_t>();
    if (least < 0 || most >= classes) {
      throw ValueError(
          concat(what, ": got class ", least < 0 ? least : most, ", expected 0 to ", classes - 1));
    }
  }
  return at::one_hot(targets, classes)
      .to(images.is_floating_point() ? images.scalar_type() : at::kFloat);
}

at::Tensor mixed(const at::Tensor& values, double weight) {
  return values.roll(1, 0).mul_(1 - weight).add_(values.mul(weight));
}

// Shapes below 1 by the one for shape + 1.
double draw_gamma(double shape, Random& random) {
  if (shape < 1) {
    const double larger = draw_gamma(shape + 1, random);
    return larger * std::pow(1 - random.uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random.normal();
    const double v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    if (std::log(1 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

void check_alpha(const char* what, double alpha) {
  if (!(alpha > 0) || !std::isfinite(alpha))
    throw ValueError(concat(what, ": got alpha ", alpha, ", expected a number above 0"));
}

}  // namespace

double draw_beta(double a, double b, Random& random) {
  const double x = draw_gamma(a, random), y = draw_gamma(b, random);
  return x + y > 0 ? x / (x + y) : 0.5;
}

Mixed mixup(const at::Tensor& images, const at::Tensor& targets, double weight, int64_t classes) {
  const at::Tensor soft = soft_targets("mixup", images, targets, classes);
  if (!images.is_floating_point())
    throw ValueError(
        concat("mixup: got images ", images.scalar_type(), ", expected floating point"));
  if (!(weight >= 0 && weight <= 1))
    throw ValueError(concat("mixup: got weight ", weight, ", expected 0 to 1"));
  return {mixed(images, weight), mixed(soft, weight)};
}

Mixed cutmix(const at::Tensor& images, const at::Tensor& targets, int64_t top, int64_t left,
             int64_t bottom, int64_t right, int64_t classes) {
  const at::Tensor soft = soft_targets("cutmix", images, targets, classes);
  if (images.dim() != 4) throw ValueError("cutmix: expected images [N, channels, height, width]");
  const int64_t height = images.size(2), width = images.size(3);
  if (top < 0 || left < 0 || bottom < top || right < left || bottom > height || right > width) {
    throw ValueError(concat("cutmix: got rows ", top, " to ", bottom, " and columns ", left, " to ",
                            right, ", expected a part of ", height, " x ", width));
  }
  const auto part = [&](const at::Tensor& of) {
    return of.narrow(2, top, bottom - top).narrow(3, left, right - left);
  };
  at::Tensor result = images.clone();
  part(result).copy_(part(images.roll(1, 0)));
  const auto share =
      static_cast<double>((bottom - top) * (right - left)) / static_cast<double>(height * width);
  return {result, mixed(soft, 1 - share)};
}

BatchTransform random_mixup(int64_t classes, double alpha) {
  check_alpha("mixup", alpha);
  return [=](Tree batch, Random& random) -> Tree {
    const double weight = draw_beta(alpha, alpha, random);
    const Mixed result = mixup(batch[0].tensor(), batch[1].tensor(), weight, classes);
    return Tree::List{result.images, result.targets};
  };
}

BatchTransform random_cutmix(int64_t classes, double alpha) {
  check_alpha("cutmix", alpha);
  return [=](Tree batch, Random& random) -> Tree {
    const at::Tensor& images = batch[0].tensor();
    const double weight = draw_beta(alpha, alpha, random);
    const int64_t height = images.size(-2), width = images.size(-1);
    const double half = 0.5 * std::sqrt(1 - weight);
    const int64_t x = random.below(width), y = random.below(height);
    const auto half_width = static_cast<int64_t>(half * static_cast<double>(width));
    const auto half_height = static_cast<int64_t>(half * static_cast<double>(height));
    const Mixed result =
        cutmix(images, batch[1].tensor(), std::max<int64_t>(0, y - half_height),
               std::max<int64_t>(0, x - half_width), std::min(height, y + half_height),
               std::min(width, x + half_width), classes);
    return Tree::List{result.images, result.targets};
  };
}

}  // namespace bellows::data
