// Muon, for the matrices of hidden layers. Sources: "Muon: An optimizer for hidden layers in neural
// networks" (Jordan et al. 2024), torch/optim/_muon.py.
#pragma once

#include "bellows/optim/grouped.h"

namespace bellows::optim {

struct MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  int64_t ns_steps = 5;
  /// "original", "match_rms_adamw" or "spectral_unclamped"; nothing is "original".
  std::optional<std::string> adjust_lr_fn = std::nullopt;
  Implementation implementation = Implementation::automatic;
};

/// State: momentum_buffer. Matrices are made orthogonal in bfloat16, whatever their type. There is
/// the implementation `single` alone.
class Muon : public GroupedOptimizer<MuonOptions> {
 public:
  /// Also throws ValueError, with its name, for a parameter that has not two dimensions: give
  /// biases and embeddings to another optimizer.
  explicit Muon(const std::vector<ParamGroup<MuonOptions>>& groups);
  explicit Muon(NamedTensors parameters, MuonOptions options = {});

 private:
  void update(size_t group, Batch& batch) override;
};

void visit_options(OptionVisitor& visitor, MuonOptions& options);
const StateLayout& state_layout(const MuonOptions& options);
StateNeeds state_needs(const MuonOptions& options);

}  // namespace bellows::optim
