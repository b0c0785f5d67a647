// Moving a module in place.
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace torch::nn {
class Module;
}

namespace bellows {

/// Moves all parameters, buffers and gradients; with `dtype`, floating-point ones are converted
/// too. Tensor objects stay the same, so handles held elsewhere (the module's members, an
/// optimizer) see the move. The module's own `to` is called, so a module that overrides it can
/// bring tensors it has not registered. To Meta all values are lost; a module comes back from Meta
/// uninitialised. Differs from torch::nn::Module::to in that gradients follow: there, the next
/// backward adds to a gradient of the old device or type; and in that integer buffers keep their
/// type. Optimizer state made before the move does not follow: make the optimizer afterwards or
/// reload its state.
void to(torch::nn::Module& module, c10::Device device,
        std::optional<c10::ScalarType> dtype = std::nullopt, bool non_blocking = false);

}  // namespace bellows
