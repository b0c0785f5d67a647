// Averages of a model's weights over the steps of a training. Sources: torch/optim/swa_utils.py;
// "Averaging Weights Leads to Wider Optima" (Izmailov et al. 2018).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "bellows/tree/stateful.h"

namespace torch::nn {
class Module;
}

namespace bellows::optim {

struct AveragedModelOptions {
  /// Exponential moving average: each update keeps this share of the average. Nothing: the equal
  /// average of all updates (SWA).
  std::optional<double> ema_decay = std::nullopt;
  /// Buffers (running statistics) are averaged too; otherwise the average has the model's of the
  /// last update.
  bool use_buffers = false;
};

/// Keeps an average of a model's tensors beside it: pass `model.named_parameters()` and
/// `model.named_buffers()`. The first update copies. The average follows a model that is moved to
/// another device or type at the next update. One thread at a time.
class AveragedModel : public Stateful {
 public:
  /// Starts with copies of the tensors of now. Throws ValueError for a decay outside of [0, 1], no
  /// parameters, and a name that comes twice.
  AveragedModel(NamedTensors parameters, NamedTensors buffers = {},
                AveragedModelOptions options = {});

  /// Takes the model of now into the average. No wait for a device.
  void update_parameters();
  int64_t n_averaged() const { return count_; }

  /// The average, by the model's names, parameters before buffers: what a model of the same
  /// structure loads (`load_state_dict`).
  const NamedTensors& tensors() const { return averages_; }
  /// Exchanges the values of model and average, in place: to evaluate the average in the model.
  /// Call it again before the next training step.
  void swap();

  /// {"n_averaged", "averages": {name: tensor}}. Loading throws ValueError, with all names that do
  /// not fit.
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  void follow();
  void average(const std::vector<at::Tensor>& averages,
               const std::vector<at::Tensor>& values) const;
  double weight() const;

  NamedTensors model_;     // parameters, then buffers
  NamedTensors averages_;  // likewise
  size_t parameters_;      // how many
  AveragedModelOptions options_;
  int64_t count_ = 0;
};

/// Computes the running statistics of a module's BatchNorm layers anew, as equal averages over the
/// batches that `forward_next` runs through it, in training mode: weights that have been averaged
/// need that. It returns false, without having run one, when no batch is left. Modes and momenta
/// are restored, also after an error. Nothing happens without such layers; layers of other kinds
/// are not touched.
void update_bn(torch::nn::Module& module, const std::function<bool()>& forward_next);

}  // namespace bellows::optim
