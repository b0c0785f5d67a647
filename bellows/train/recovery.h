// Doing a step anew in smaller parts after memory has run out.
#pragma once

#include <vector>

#include "bellows/device/seed.h"
#include "bellows/nn/model.h"
#include "bellows/parallel/group.h"

namespace bellows::train {

/// What a forward pass changes besides gradients: random generators and buffers. One object for
/// all steps of a model; its copies of the buffers are used again.
class StepSnapshot {
 public:
  explicit StepSnapshot(const nn::Model& model);
  void take();
  /// As of the last take().
  void restore() const;

 private:
  std::vector<at::Tensor> buffers_, copies_;
  RandomState random_;
  Tree generators_;
};

/// Whether it held on all ranks. Collective.
bool on_all(const parallel::Group& group, bool holds);

/// The mean over ranks of all gradients, for a step that has reduced none; a gradient that is
/// missing counts as 0. Collective.
void average_gradients(const parallel::Group& group, const NamedTensors& parameters);

}  // namespace bellows::train
