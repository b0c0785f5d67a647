// Clipping gradients. Source: torch/nn/utils/clip_grad.py.
#pragma once

#include "bellows/tree/tree.h"

namespace bellows::optim {

/// The norm of order `norm_type` (2: of the sum of squares; infinity: the largest) of all gradients
/// together, as a 0-dim tensor on the gradients' device; nothing waits for the device. Parameters
/// without a gradient do not count. Throws ValueError for a norm_type that is 0, negative or NaN.
/// With error_if_nonfinite it waits, once, and throws NonFiniteError for a norm that is not finite.
at::Tensor get_total_norm(const NamedTensors& parameters, double norm_type = 2,
                          bool error_if_nonfinite = false);

/// Scales gradients in place so that their joint norm is at most max_norm: coefficient
/// max_norm / (norm + 1e-6), at most 1. Returns the norm before, as get_total_norm and with its
/// errors; a norm that is not finite makes the gradients NaN or zero. Throws ValueError for a
/// negative or NaN max_norm.
at::Tensor clip_grad_norm_(const NamedTensors& parameters, double max_norm, double norm_type = 2,
                           bool error_if_nonfinite = false);

/// Scales gradients, of which `total_norm` is the norm, as clip_grad_norm_ does.
void clip_grads_with_norm_(const NamedTensors& parameters, double max_norm,
                           const at::Tensor& total_norm);

/// Limits every value of the gradients to [-clip_value, clip_value], in place; NaN stays. Throws
/// ValueError for a negative or NaN clip_value.
void clip_grad_value_(const NamedTensors& parameters, double clip_value);

}  // namespace bellows::optim
