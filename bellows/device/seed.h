// Random numbers and determinism of the whole process.
#pragma once

#include <cstdint>

#include "bellows/tree/stateful.h"

namespace bellows {

/// Seeds the default generators of the CPU and of every usable CUDA or simulated device. The same
/// draws as torch.manual_seed(seed) in Python. Call init() before.
void seed_everything(uint64_t seed);

/// The state of the default generators: "cpu", and "cuda:0" … or "sim:0" … where there are any. The
/// generators are global: all objects of this class stand for the same state.
class RandomState : public Stateful {
 public:
  /// Copies, not live ones.
  Tree state_dict() const override;
  /// Devices saved but not here, or here but not saved (a run moved to another machine), are left
  /// as they are, with a warning; anything else missing, unexpected or of another shape is a
  /// ValueError.
  void load_state_dict(const Tree& state) override;
};

/// On: operators without a deterministic implementation throw, cuDNN takes deterministic algorithms
/// and does not time several to pick one, and CUBLAS_WORKSPACE_CONFIG is set to :4096:8 unless it
/// is set already (so call it before the first product on a device and before other threads start).
/// Off: LibTorch's defaults. Costs speed. Role of torch.use_deterministic_algorithms.
void set_deterministic(bool on);
bool deterministic();

}  // namespace bellows
