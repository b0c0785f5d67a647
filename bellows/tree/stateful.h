// What can be saved and restored: optimizers, loaders, random generators, schedules, the trainer.
#pragma once

#include "bellows/tree/tree.h"

namespace bellows {

class Stateful {
 public:
  virtual ~Stateful() = default;
  /// All that is needed to go on as if never stopped. Tensors in it are the live ones, not copies:
  /// save or copy them before the object changes again.
  virtual Tree state_dict() const = 0;
  /// Restores what state_dict() gave; copies tensors into its own. Throws ValueError, naming every
  /// entry that is missing, unexpected or of another shape, before anything has changed.
  virtual void load_state_dict(const Tree& state) = 0;
};

}  // namespace bellows
