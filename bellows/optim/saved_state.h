// Matching a saved optimizer state with an optimizer, by parameter name. For the sources of
// optimizers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/optim/optimizer.h"

namespace bellows::optim {

/// What a saved state holds for one optimizer; points into the saved tree.
struct SavedState {
  /// By group: the saved options of its parameters; null for a group without parameters.
  std::vector<const Tree*> options;
  /// By group and place in it: the parameter's saved state; null where it had none.
  std::vector<std::vector<const Tree*>> states;
};

/// Appends what is wrong with `state`, saved in a group with `options`, for that parameter.
using StateCheck =
    std::function<void(const std::string& name, const at::Tensor& parameter, const Tree& state,
                       const Tree& options, std::vector<std::string>& wrong)>;

/// Throws ValueError for the state of another kind of optimizer, for names that are missing or
/// unexpected and whatever `check` found (all in one message), and for a group that would join
/// parameters saved with different options.
SavedState match_saved(const Optimizer& optimizer, const Tree& saved, const StateCheck& check);

}  // namespace bellows::optim
