// How much memory a training step will need, before any is taken.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "bellows/memory/policy.h"
#include "bellows/nn/model.h"
#include "bellows/optim/optimizer.h"
#include "bellows/tree/tree.h"

namespace bellows::memory {

/// What is estimated. Nothing of it is run on real tensors.
struct EstimateJob {
  /// Makes the model; all tensors that it makes go to the meta device, whatever their size.
  std::function<nn::Model()> model;
  /// The loss of a batch, as the training step computes it.
  std::function<at::Tensor(const nn::Model& model, const Tree& batch)> loss;
  /// Makes the optimizer; nothing: none.
  std::function<std::unique_ptr<optim::Optimizer>(NamedTensors parameters)> optimizer = {};
  /// Shapes and types of a batch: tensors of any device, the meta device among them, whose values
  /// are not read.
  Tree batch;
  CheckpointPolicy checkpointing = {};
};

/// Bytes.
struct Estimate {
  int64_t parameters = 0;
  int64_t buffers = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t batch = 0;
  /// What else is live when most is: activations, gradients of them, temporary tensors.
  int64_t activations = 0;
  /// Kept for the backward pass when the forward pass has ended.
  int64_t saved = 0;
  /// The most live at once, each tensor rounded up as devices' allocators do.
  int64_t peak = 0;
  int64_t rounding = 0;  // of the peak
  /// The surcharge of a CUDA device, not in the peak and not of tensors: the context with its
  /// kernels, and cuBLAS's workspace. Of the order of what PyTorch shows on an H100; other drivers
  /// and devices differ.
  int64_t cuda_context = int64_t{500} << 20;
  int64_t cuda_workspace = int64_t{32} << 20;

  std::string table() const;
};

/// Runs two training steps on the meta device, where tensors have shapes and no memory: forward,
/// backward with its recomputations, update; what they would take is counted tensor by tensor. What
/// kernels take within themselves is not seen. Within 10 % of the peak on a simulated device; LSTMs
/// are taken to be run as on CPUs. Throws ValueError, naming the operator, for one without a shape
/// function and for programs that read values; EnvironmentError as SavedTensorGuard. Not while
/// other threads use the meta device.
Estimate estimate(const EstimateJob& job);

}  // namespace bellows::memory
