// BatchNorm with the statistics of the whole batch, of which each rank has a part. Names and
// defaults are those of torch.nn.SyncBatchNorm; here it also works on the CPU.
#pragma once

#include <memory>

#include "bellows/nn/model.h"
#include "bellows/parallel/group.h"

namespace bellows::parallel {

/// Normalizes `input`, [N, C, …] of any layout, with mean and variance over all ranks' inputs,
/// whose N and further sizes may differ, and be 0. `weight`, `bias` [C], `running_mean` and
/// `running_var` [C] may be undefined; the latter two are updated as BatchNorm's are. Sums are
/// taken in float32 for 16-bit types. Forward and backward each have one collective; the weight's
/// and bias's gradients are this rank's part of the sum, as any parameter's. All ranks must call
/// it, and must agree on whether the input wants a gradient. Throws ValueError on all ranks for one
/// value per channel in all, and for inputs of fewer than 2 dimensions. A group of one is plain
/// BatchNorm.
at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& running_mean,
                           const at::Tensor& running_var, const Group& group, double momentum = 0.1,
                           double eps = 1e-5);

/// While alive, every BatchNorm in training mode that this thread runs, in any module, unmodified,
/// takes the statistics of all ranks of the group: see sync_batch_norm. Evaluation mode is left
/// alone. TorchScript modules are included: their graphs run as written meanwhile, not optimized.
/// 0.2 us an operator; ends on the thread that made it, in reverse order of other such guards.
class SyncBatchNormGuard {
 public:
  explicit SyncBatchNormGuard(Group group);
  ~SyncBatchNormGuard();
  SyncBatchNormGuard(const SyncBatchNormGuard&) = delete;
  SyncBatchNormGuard& operator=(const SyncBatchNormGuard&) = delete;
  /// Whether one is in force on this thread.
  static bool active();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The same model, with its parameters, buffers, names and mode, whose forward runs under a
/// SyncBatchNormGuard. With a group of one it behaves as before.
nn::Model convert_sync_batch_norm(const nn::Model& model, const Group& group);

}  // namespace bellows::parallel
