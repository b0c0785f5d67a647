// Batches in which each sample is mixed with its neighbour.
#pragma once

#include "bellows/data/loader.h"

namespace bellows::data {

/// Images and targets of a batch.
struct Mixed {
  at::Tensor images;
  /// Floating point [N, classes], rows adding up to 1.
  at::Tensor targets;
};

/// weight x batch + (1 - weight) x the batch moved on by one (torchvision.transforms.v2.MixUp;
/// Zhang et al., 2018). Images floating point [N, ...]; targets int64 [N] below `classes`, or [N,
/// classes]. Throws ValueError otherwise.
Mixed mixup(const at::Tensor& images, const at::Tensor& targets, double weight, int64_t classes);

/// The rectangle comes from the batch moved on by one, and targets are mixed by its share of the
/// area (torchvision.transforms.v2.CutMix; Yun et al., 2019). Images of any type [N, C, H, W].
Mixed cutmix(const at::Tensor& images, const at::Tensor& targets, int64_t top, int64_t left,
             int64_t bottom, int64_t right, int64_t classes);

/// For LoaderOptions::on_batch, of batches {images, targets}: the weight is drawn from
/// Beta(alpha, alpha), and cutmix's rectangle covers 1 - weight of the area, around a random place.
BatchTransform random_mixup(int64_t classes, double alpha = 1);
BatchTransform random_cutmix(int64_t classes, double alpha = 1);

/// A draw from Beta(a, b), a and b above 0, by two gamma variates (Marsaglia and Tsang, 2000).
double draw_beta(double a, double b, Random& random);

}  // namespace bellows::data
