// SyncBatchNorm as a module, for networks that are written with it; existing ones need no other
// modules: see SyncBatchNormGuard. This header costs 12 s where it is included, as from_module.h.
#pragma once

#include <optional>

#include "bellows/nn/from_module.h"
#include "bellows/parallel/group.h"

namespace bellows::parallel {

struct SyncBatchNormOptions {
  double eps = 1e-5;
  /// Nothing: the mean of all batches so far.
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track_running_stats = true;
};

/// torch.nn.SyncBatchNorm: parameters and buffers have BatchNorm's names, so that their states are
/// exchangeable. Input [N, channels, …]. Collective in training mode: see sync_batch_norm.
class SyncBatchNormImpl : public torch::nn::Module {
 public:
  SyncBatchNormImpl(int64_t channels, Group group, SyncBatchNormOptions options = {});
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 private:
  Group group_;
  SyncBatchNormOptions options_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace bellows::parallel
