// A Model from a TorchScript module: what Python's torch.jit.script or trace made, trained on from
// C++.
#pragma once

#include <filesystem>

#include "bellows/nn/model.h"

namespace torch::jit {
struct Module;
}

namespace bellows::nn {

/// The module as a model; it is shared, not copied. All nested parameters and buffers are found, by
/// their Python names. Inputs are converted to the types forward declares: tensors, numbers,
/// strings, lists, tuples and dictionaries with text keys; outputs likewise. Throws ValueError for
/// a module without forward.
Model from_torchscript(const torch::jit::Module& module);

/// Reads a file that torch.jit.save wrote, onto the CPU; move it with to(). Only parameters and
/// buffers are moved then: constants of the code stay on the CPU, and do not force the device to
/// wait. Such a file holds code that forward runs: load files of a trusted origin only. Throws
/// FileError, or CorruptFileError with LibTorch's reason.
Model load_torchscript(const std::filesystem::path& path);

/// A module that shares no parameter, buffer, attribute or sub-module with the original, unlike
/// Module::clone() of LibTorch, which shares all of them: values, requires_grad, ties, sub-modules
/// that are one, and modes are the same; gradients are not copied. The code, with its constants, is
/// shared: nothing changes it.
torch::jit::Module deep_copy(const torch::jit::Module& module);

}  // namespace bellows::nn
