// The tensors of a model that is being copied: their values before, and what the copy must match.
// For the sources of nn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/nn/state.h"

namespace bellows::nn {

/// Parameters and buffers, each once under its first name, and the other names.
struct OwnTensors {
  NamedTensors parameters, buffers;
  Ties ties;
};

OwnTensors own_tensors(const torch::nn::Module& module);

class TensorCopies {
 public:
  /// Copies the values at once: making the copy may run code that changes the original.
  explicit TensorCopies(OwnTensors original);

  /// What keeps `copy` from getting these values, in words; empty: nothing.
  std::string misfit(const OwnTensors& copy) const;
  /// A tensor of the original's that something has taken a handle to since the values were copied;
  /// empty: none.
  std::string newly_held() const;
  /// Hands over values, types, devices and requires_grad, and drops gradients. Handles to the
  /// copy's tensors stay. Those that share memory in the original do so in the copy. Once.
  void give_to(const OwnTensors& copy);
  /// Gives the original its values back where they were changed; whether they were.
  bool restore();

 private:
  OwnTensors original_;
  std::vector<at::Tensor> values_;  // of the parameters, then of the buffers
  std::vector<int64_t> versions_;   // of the original's tensors, when the values were taken
  std::vector<size_t> held_;        // how many handles there were to each
};

/// What is drawn while it lives is not missing from the random generators afterwards.
class KeepRandomState {
 public:
  KeepRandomState();
  ~KeepRandomState();
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  Tree state_;
};

}  // namespace bellows::nn
