// What the library's models, losses and optimizers do, on any device.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "bellows/nn/model.h"
#include "bellows/optim/optimizer.h"

namespace bellows::conformance {

/// The built-in models, small.
const std::vector<std::string>& model_names();
nn::Model make_model(const std::string& name, uint64_t seed);
/// [8, …] and class indices [8].
at::Tensor make_input(const std::string& model, uint64_t seed);
at::Tensor make_target(uint64_t seed);

/// One step of training and one evaluation of the model, on `device`.
void run_model(const std::string& name, c10::Device device);
/// Losses with their gradients.
void run_losses(c10::Device device);
/// Two steps of each optimizer of the library and of LibTorch, with every option, and clipping.
void run_optimizers(c10::Device device);
/// All of the above.
void run_all(c10::Device device);

}  // namespace bellows::conformance
