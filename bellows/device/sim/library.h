// Registrations with LibTorch's dispatcher. Internal.
#pragma once

#include <torch/library.h>

namespace bellows::sim {

/// A set of kernels of one namespace ("aten", or "_" for fall-backs) and key. In force until the
/// process ends.
torch::Library& library(const char* name, c10::DispatchKey key);

}  // namespace bellows::sim
