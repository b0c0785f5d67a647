// Matching a state dictionary with the tensors it is loaded into. For the sources of nn.
#pragma once

#include "bellows/nn/state.h"

namespace bellows::nn {

/// What load_state_dict will do, worked out before anything is changed.
struct StateLoad {
  /// (target, value of its type and shape).
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  IncompatibleKeys report;
};

/// Throws ValueError as Model::load_state_dict. `targets` are detached and have each tensor once;
/// `ties` are their further names.
StateLoad plan_load(const NamedTensors& targets, const Ties& ties, const NamedTensors& state,
                    const LoadOptions& options);

/// Carries it out.
void apply(const StateLoad& load);

/// Parameters, then buffers, detached; with Names::all a tied tensor also under its other names.
NamedTensors joined_state(NamedTensors parameters, NamedTensors buffers, const Ties& ties,
                          Names names);

}  // namespace bellows::nn
