// Which operators a program calls, with copies of their arguments.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

namespace bellows::conformance {

struct Call {
  std::string name;  // "aten::add.Tensor"
  std::vector<c10::IValue> arguments;
};

/// Runs `work` and gives the operators called in it, at every level (what a linear layer is made of
/// too), in all threads: of each at most `variants` calls that differ in shapes, types, layouts or
/// further arguments. The arguments are copies that share memory among themselves as the originals
/// did.
std::vector<Call> record(const std::function<void()>& work, size_t variants);

/// Copies of the arguments on `device` ("cpu" or "sim:N"), again sharing memory as the originals
/// do.
std::vector<c10::IValue> copy_to(const std::vector<c10::IValue>& arguments, c10::Device device);

/// All tensors of a value or of values, in order; undefined ones too.
std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& values);

}  // namespace bellows::conformance
