#include "bellows/parallel/sync_batch_norm_module.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/parallel/sync_batch_norm.h"

namespace bellows::parallel {

SyncBatchNormImpl::SyncBatchNormImpl(int64_t channels, Group group, SyncBatchNormOptions options)
    : group_(std::move(group)), options_(options) {
  if (channels < 1)
    throw ValueError(concat("SyncBatchNorm: got ", channels, " channels, expected at least 1"));
  weight = register_parameter("weight", options.affine ? at::ones({channels}) : at::Tensor(),
                              options.affine);
  bias = register_parameter("bias", options.affine ? at::zeros({channels}) : at::Tensor(),
                            options.affine);
  if (!options.track_running_stats) return;
  running_mean = register_buffer("running_mean", at::zeros({channels}));
  running_var = register_buffer("running_var", at::ones({channels}));
  num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  if (!is_training())
    return at::batch_norm(input, weight, bias, running_mean, running_var,
                          !options_.track_running_stats, 0, options_.eps, false);
  double momentum = options_.momentum.value_or(0);
  if (options_.track_running_stats) {
    num_batches_tracked.add_(1);
    if (!options_.momentum) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  return sync_batch_norm(input, weight, bias, running_mean, running_var, group_, momentum,
                         options_.eps);
}

}  // namespace bellows::parallel
