// Parameter groups by name, and freezing by name.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/optim/optimizer.h"

namespace bellows::optim {

/// Scales the options of the parameters it holds for; where several hold, all scale.
struct GroupRule {
  std::function<bool(const std::string& name, const at::Tensor& parameter)> holds_for;
  double lr_scale = 1;
  double weight_decay_scale = 1;
  /// Shown in errors.
  std::string what = "a rule";
};

/// By name: in `pattern` "*" stands for any text and "?" for one character; it must fit the whole
/// name ("encoder.*.bias").
GroupRule scale_by_name(const std::string& pattern, double lr_scale, double weight_decay_scale = 1);
/// No weight decay for parameters with fewer than two dimensions: biases, and the weights of
/// normalisation layers.
GroupRule no_decay_for_vectors();
/// Layer-wise decay of the rate: `layers` are patterns from the first layer to the last, whose
/// rate is kept; each before it has `decay` times the rate of the next.
std::vector<GroupRule> layerwise_lr_decay(const std::vector<std::string>& layers, double decay);

/// Which parameters have the same scales, in order of first appearance.
struct ScaledGroup {
  NamedTensors parameters;
  double lr_scale = 1;
  double weight_decay_scale = 1;
};

/// Throws ValueError for a rule that holds for no parameter, and a scale that is negative or not
/// finite.
std::vector<ScaledGroup> scaled_groups(const NamedTensors& parameters,
                                       const std::vector<GroupRule>& rules);

/// Groups for an optimizer: `options`, scaled as the rules say. Throws as scaled_groups; also for a
/// weight_decay_scale where the optimizer has no weight decay.
template <class O>
std::vector<ParamGroup<O>> param_groups(const NamedTensors& parameters, const O& options,
                                        const std::vector<GroupRule>& rules);

/// Whether the pattern, as in scale_by_name, fits the whole name.
bool fits(const std::string& pattern, const std::string& name);

/// Parameters whose name fits one of the patterns get no gradients any more and lose those they
/// have; an optimizer leaves them alone. Returns how many there are. Throws ValueError for a
/// pattern that fits none.
size_t freeze(const NamedTensors& parameters, const std::vector<std::string>& patterns);
/// The other way round.
size_t unfreeze(const NamedTensors& parameters, const std::vector<std::string>& patterns);
/// Those that get gradients.
NamedTensors trainable(const NamedTensors& parameters);

namespace detail {
[[noreturn]] void refuse_decay_scale();
}  // namespace detail

template <class O>
std::vector<ParamGroup<O>> param_groups(const NamedTensors& parameters, const O& options,
                                        const std::vector<GroupRule>& rules) {
  std::vector<ParamGroup<O>> groups;
  for (ScaledGroup& group : scaled_groups(parameters, rules)) {
    O own = options;
    own.lr *= group.lr_scale;
    if constexpr (requires { own.weight_decay; }) {
      own.weight_decay *= group.weight_decay_scale;
    } else if (group.weight_decay_scale != 1) {
      detail::refuse_decay_scale();
    }
    groups.push_back({std::move(group.parameters), std::move(own)});
  }
  return groups;
}

}  // namespace bellows::optim
