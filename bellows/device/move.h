// Moving modules and nests of tensors, and finding what is on the wrong device.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "bellows/tree/tree.h"

namespace bellows {

/// The same nest on `device`. Tensors already there are shared, not copied. non_blocking as in
/// Tensor::to.
Tree to(const Tree& value, c10::Device device, bool non_blocking = false);

/// Names every tensor that is not on `device`, before anything runs: parameters (their gradients
/// too), buffers, and the tensors of `input`. Throws ValueError "expected all on cuda:0; on cpu:
/// parameter fc.weight, buffer bn.running_mean, input 0". Costs no device work.
void check_devices(c10::Device device, const NamedTensors& parameters, const NamedTensors& buffers,
                   const Tree& input = {});

/// Whether both name one device; a device without an index stands for any of its kind.
bool same_device(c10::Device a, c10::Device b);

/// How messages call the tensor at `path` of an input: "input", "input 0", "input image".
std::string input_name(const std::string& path);

}  // namespace bellows
