// Names the tensors when two devices meet in an operator.
#pragma once

#include <map>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "bellows/device/interceptor.h"
#include "bellows/tree/tree.h"

namespace bellows {

/// While alive, every operator of this thread (and of a backward started meanwhile) whose tensors
/// lie on two devices throws ValueError before it runs: "aten::linear: tensors of two devices meet:
/// input (input x) on cuda:0, weight on cpu (not registered with the module …)". This finds what
/// check_devices() cannot know of: tensors that a module holds without having registered them.
/// Mixtures that LibTorch allows (numbers as 0-dim CPU tensors, index tensors, copies) pass. For
/// the first step; not for all of training: it costs about a microsecond an operator.
class DeviceCheckGuard {
 public:
  /// The names are those used in the message; the tensors need only be alive while the guard is.
  DeviceCheckGuard(c10::Device expected, const NamedTensors& parameters,
                   const NamedTensors& buffers = {}, const Tree& input = {});

 private:
  void check(const OperatorCall& call) const;
  std::string describe(const std::string& argument, const at::Tensor& tensor) const;

  c10::Device expected_;
  std::map<const void*, std::string> names_;  // by tensor, and by its memory for views
  InterceptGuard guard_;
};

}  // namespace bellows
