#include <memory>
#include <optional>

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>

#include "bellows/optim/averaged_model.h"

namespace bellows::optim {
namespace {

/// A layer whose statistics are cumulative averages while it lives.
template <class Layer>
class Cumulative {
 public:
  explicit Cumulative(std::shared_ptr<Layer> layer)
      : layer_(std::move(layer)), momentum_(layer_->options.momentum()) {
    layer_->reset_running_stats();
    layer_->options.momentum(std::nullopt);
  }
  Cumulative(const Cumulative&) = delete;
  Cumulative& operator=(const Cumulative&) = delete;
  ~Cumulative() { layer_->options.momentum(momentum_); }

 private:
  std::shared_ptr<Layer> layer_;
  std::optional<double> momentum_;
};

template <class Layer>
bool hold(const std::shared_ptr<torch::nn::Module>& module,
          std::vector<std::shared_ptr<void>>& held) {
  auto layer = std::dynamic_pointer_cast<Layer>(module);
  if (!layer) return false;
  held.push_back(std::make_shared<Cumulative<Layer>>(std::move(layer)));
  return true;
}

struct TrainingMode {
  torch::nn::Module& module;
  bool before;
  ~TrainingMode() { module.train(before); }
};

}  // namespace

void update_bn(torch::nn::Module& module, const std::function<bool()>& forward_next) {
  const at::NoGradGuard no_grad;
  std::vector<std::shared_ptr<void>> held;
  for (const auto& layer : module.modules()) {
    hold<torch::nn::BatchNorm1dImpl>(layer, held) ||
        hold<torch::nn::BatchNorm2dImpl>(layer, held) ||
        hold<torch::nn::BatchNorm3dImpl>(layer, held);
  }
  if (held.empty()) return;
  const TrainingMode mode{module, module.is_training()};
  module.train();
  while (forward_next()) {
  }
}

}  // namespace bellows::optim
