#include "bellows/optim/lr_finder.h"

#include <cmath>

#include <c10/core/GradMode.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::optim {
namespace {

void check(const LRFinderOptions& options) {
  const auto require = [](bool holds, const char* key, double got, const char* expected) {
    if (holds) return;
    throw ValueError(concat("find_lr: ", key, ": got ", got, ", expected ", expected));
  };
  require(options.start_lr > 0 && std::isfinite(options.start_lr), "start_lr", options.start_lr,
          "a finite number above 0");
  require(options.end_lr > options.start_lr && std::isfinite(options.end_lr), "end_lr",
          options.end_lr, "a finite number above start_lr");
  require(options.steps > 1, "steps", static_cast<double>(options.steps), "at least 2");
  require(options.smoothing >= 0 && options.smoothing < 1, "smoothing", options.smoothing,
          "0 to below 1");
  require(options.divergence > 1, "divergence", options.divergence, "above 1");
  require(options.skip_begin >= 0, "skip_begin", static_cast<double>(options.skip_begin),
          "at least 0");
  require(options.skip_end >= 0, "skip_end", static_cast<double>(options.skip_end), "at least 0");
}

// Model and optimizer as they were when it was made.
class Snapshot {
 public:
  Snapshot(Optimizer& optimizer, const NamedTensors& tensors)
      : optimizer_(optimizer),
        tensors_(tensors),
        state_(
            optimizer.state_dict().map([](const at::Tensor& tensor) { return tensor.clone(); })) {
    const c10::NoGradGuard no_grad;
    for (const auto& [name, tensor] : tensors) values_.push_back(tensor.detach().clone());
  }

  void restore() {
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < values_.size(); ++i) tensors_[i].second.detach().copy_(values_[i]);
    optimizer_.load_state_dict(state_);
    optimizer_.zero_grad();
  }

 private:
  Optimizer& optimizer_;
  NamedTensors tensors_;
  Tree state_;
  std::vector<at::Tensor> values_;
};

std::optional<double> steepest(const LRFinderResult& result, const LRFinderOptions& options) {
  const int64_t end = std::ssize(result.losses) - options.skip_end;
  std::optional<double> best;
  double slope = 0;
  for (int64_t i = std::max<int64_t>(1, options.skip_begin); i + 1 < end; ++i) {
    const auto at = static_cast<size_t>(i);
    // Rates are equally far apart in their logarithm.
    const double here = result.losses[at + 1] - result.losses[at - 1];
    if (here < slope) {
      slope = here;
      best = result.lrs[at];
    }
  }
  return best;
}

LRFinderResult run(Optimizer& optimizer, const LossClosure& closure,
                   const LRFinderOptions& options) {
  std::vector<double> proportions;
  for (size_t group = 0; group < optimizer.group_count(); ++group) {
    proportions.push_back(group == 0 ? 1 : optimizer.lr(group) / optimizer.lr(0));
  }
  LRFinderResult result;
  double average = 0, smallest = 0;
  for (int64_t step = 0; step < options.steps; ++step) {
    const double part = static_cast<double>(step) / static_cast<double>(options.steps - 1);
    const double lr = options.start_lr * std::pow(options.end_lr / options.start_lr, part);
    for (size_t group = 0; group < proportions.size(); ++group) {
      optimizer.set_lr(group, lr * proportions[group]);
    }
    const double loss = optimizer.step(closure).item<double>();
    average = options.smoothing * average + (1 - options.smoothing) * loss;
    const double smoothed =
        average / (1 - std::pow(options.smoothing, static_cast<double>(step + 1)));
    result.lrs.push_back(lr);
    result.losses.push_back(smoothed);
    if (step == 0 || smoothed < smallest) smallest = smoothed;
    result.diverged = !std::isfinite(smoothed) ||
                      smoothed - smallest > (options.divergence - 1) * std::abs(smallest);
    if (result.diverged) break;
  }
  result.suggestion = steepest(result, options);
  return result;
}

}  // namespace

LRFinderResult find_lr(Optimizer& optimizer, const NamedTensors& tensors,
                       const LossClosure& closure, const LRFinderOptions& options) {
  check(options);
  if (optimizer.group_count() > 1 && optimizer.lr(0) == 0) {
    throw ValueError("find_lr: the first group's rate is 0; the others have no proportion to it");
  }
  Snapshot before(optimizer, tensors);
  try {
    LRFinderResult result = run(optimizer, closure, options);
    before.restore();
    return result;
  } catch (...) {
    before.restore();
    throw;
  }
}

}  // namespace bellows::optim
