// From a batch's loss to changed parameters: precision, backward, clipping, the optimizer's step.
#pragma once

#include <functional>
#include <optional>

#include <c10/core/Device.h>

#include "bellows/amp/grad_scaler.h"
#include "bellows/amp/precision.h"
#include "bellows/optim/optimizer.h"
#include "bellows/parallel/group.h"
#include "bellows/train/callback.h"
#include "bellows/train/step.h"

namespace bellows::train {

struct UpdateOptions {
  amp::Precision precision = amp::Precision::fp32;
  /// Of fp16. With several ranks all skip together: reduce_found_inf is set here.
  amp::GradScalerOptions scaler = {};
  /// Gradients are scaled so that their joint 2-norm is at most this; 0: not.
  double clip_norm = 0;
  /// Each value of a gradient is brought into [-clip_value, clip_value], before clip_norm; 0: not.
  double clip_value = 0;
};

/// One thread.
class Update {
 public:
  /// Throws ValueError for options out of range, and for bf16-true with an optimizer other than
  /// amp::MasterWeights.
  Update(optim::Optimizer& optimizer, c10::Device device, const parallel::Group& group,
         UpdateOptions options);

  /// Model and loss in the precision asked for; also of an evaluation.
  StepOutput forward(const StepFunction& step, const nn::Model& model, const Tree& batch) const;
  /// Adds `weight` times the loss's gradients to what is there.
  void backward(const at::Tensor& loss, double weight);
  /// Clips and steps; `factor` multiplies the gradients before. False where gradients were NaN or
  /// infinite and the step was skipped (fp16). Throws as GradScaler::step.
  bool step(double factor = 1);

  /// Whether a NaN or infinite value skips a step, instead of ending the run.
  bool skips() const { return scaler_.has_value(); }
  /// Null without one.
  amp::GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }
  /// What a log should have: "loss_scale" and "skipped_steps" with a scaler, "grad_norm" (before
  /// clipping, of the last step) with clip_norm. Waits for the device.
  Values values() const;

 private:
  optim::Optimizer& optimizer_;
  const NamedTensors parameters_;  // the optimizer's, which gets no others
  c10::Device device_;
  UpdateOptions options_;
  amp::PrecisionSettings settings_;
  std::optional<amp::GradScaler> scaler_;
  at::Tensor norm_;
};

}  // namespace bellows::train
