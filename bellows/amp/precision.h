// The precisions in which a model can be trained, and what each consists of.
#pragma once

#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "bellows/tree/tree.h"

namespace bellows::amp {

enum class Precision { fp32, tf32, bf16, fp16, bf16_true };

/// "fp32", "tf32", "bf16", "fp16" or "bf16-true"; another word is a ValueError that lists them and
/// the nearest.
Precision parse_precision(std::string_view text);
std::string_view precision_name(Precision precision);

struct PrecisionSettings {
  /// Forward pass and loss run under Autocast with this dtype; without: without.
  std::optional<at::ScalarType> autocast = std::nullopt;
  /// The loss is scaled by a GradScaler.
  bool scaler = false;
  /// What parameters, buffers and inputs are kept in; other than float32 needs MasterWeights.
  at::ScalarType parameters = at::kFloat;
  /// set_allow_tf32(true). Where false, PyTorch's settings stay: not in matrix products, but in
  /// cuDNN's convolutions.
  bool allow_tf32 = false;
};

/// fp32: nothing. tf32: allow_tf32. bf16: autocast. fp16: autocast and a scaler. bf16-true:
/// parameters in bfloat16.
PrecisionSettings settings_of(Precision precision);

/// Whether CUDA may compute matrix products and convolutions of float32 with 10 bits of mantissa;
/// for the whole process. No effect on other devices.
void set_allow_tf32(bool allow);

/// Gives tensors another floating-point type in place, so that all handles to them follow; those
/// that are not floating-point stay as they are, and gradients are dropped. Before an optimizer is
/// made of them.
void convert(const NamedTensors& tensors, at::ScalarType type);
/// The tree with its floating-point tensors in that type.
Tree cast_floating(const Tree& input, at::ScalarType type);

}  // namespace bellows::amp
