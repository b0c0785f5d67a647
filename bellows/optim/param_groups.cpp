#include "bellows/optim/param_groups.h"

#include <algorithm>
#include <cmath>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::optim {
namespace {

void check_scale(const GroupRule& rule, const char* key, double scale) {
  if (scale >= 0 && std::isfinite(scale)) return;
  throw ValueError(concat("param_groups: ", rule.what, ": ", key, ": got ", scale,
                          ", expected a finite number of at least 0"));
}

size_t set_requires_grad(const NamedTensors& parameters, const std::vector<std::string>& patterns,
                         bool on) {
  std::vector<at::Tensor> chosen;
  for (const std::string& pattern : patterns) {
    const auto matches = [&](const auto& named) { return fits(pattern, named.first); };
    if (std::ranges::none_of(parameters, matches)) {
      throw ValueError(concat(on ? "unfreeze" : "freeze", ": no parameter fits '", pattern,
                              "'; the first of ", parameters.size(), " is '",
                              parameters.empty() ? "" : parameters[0].first, "'"));
    }
  }
  for (const auto& [name, parameter] : parameters) {
    const auto matches = [&, &own = name](const std::string& pattern) {
      return fits(pattern, own);
    };
    if (std::ranges::any_of(patterns, matches)) chosen.push_back(parameter);
  }
  for (const at::Tensor& parameter : chosen) {
    parameter.set_requires_grad(on);
    if (!on) parameter.mutable_grad().reset();
  }
  return chosen.size();
}

}  // namespace

bool fits(const std::string& pattern, const std::string& name) {
  // Greedy, going back to the last star: linear for one star, never exponential.
  size_t p = 0, n = 0, star = std::string::npos, mark = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

GroupRule scale_by_name(const std::string& pattern, double lr_scale, double weight_decay_scale) {
  return {.holds_for = [pattern](const std::string& name,
                                 const at::Tensor&) { return fits(pattern, name); },
          .lr_scale = lr_scale,
          .weight_decay_scale = weight_decay_scale,
          .what = "'" + pattern + "'"};
}

GroupRule no_decay_for_vectors() {
  return {.holds_for = [](const std::string&,
                          const at::Tensor& parameter) { return parameter.dim() < 2; },
          .weight_decay_scale = 0,
          .what = "no_decay_for_vectors"};
}

std::vector<GroupRule> layerwise_lr_decay(const std::vector<std::string>& layers, double decay) {
  std::vector<GroupRule> rules;
  for (size_t i = 0; i < layers.size(); ++i) {
    rules.push_back(
        scale_by_name(layers[i], std::pow(decay, static_cast<double>(layers.size() - 1 - i))));
  }
  return rules;
}

std::vector<ScaledGroup> scaled_groups(const NamedTensors& parameters,
                                       const std::vector<GroupRule>& rules) {
  std::vector<bool> used(rules.size());
  for (const GroupRule& rule : rules) {
    check_scale(rule, "lr_scale", rule.lr_scale);
    check_scale(rule, "weight_decay_scale", rule.weight_decay_scale);
  }
  std::vector<ScaledGroup> groups;
  for (const auto& [name, parameter] : parameters) {
    double lr_scale = 1, decay_scale = 1;
    for (size_t i = 0; i < rules.size(); ++i) {
      if (!rules[i].holds_for(name, parameter)) continue;
      used[i] = true;
      lr_scale *= rules[i].lr_scale;
      decay_scale *= rules[i].weight_decay_scale;
    }
    auto group = std::ranges::find_if(groups, [&](const ScaledGroup& other) {
      return other.lr_scale == lr_scale && other.weight_decay_scale == decay_scale;
    });
    if (group == groups.end()) group = groups.insert(group, {{}, lr_scale, decay_scale});
    group->parameters.emplace_back(name, parameter);
  }
  const auto unused = std::ranges::find(used, false);
  if (unused != used.end()) {
    throw ValueError(
        concat("param_groups: ", rules[static_cast<size_t>(unused - used.begin())].what,
               " holds for none of the ", parameters.size(), " parameters"));
  }
  return groups;
}

size_t freeze(const NamedTensors& parameters, const std::vector<std::string>& patterns) {
  return set_requires_grad(parameters, patterns, false);
}

size_t unfreeze(const NamedTensors& parameters, const std::vector<std::string>& patterns) {
  return set_requires_grad(parameters, patterns, true);
}

NamedTensors trainable(const NamedTensors& parameters) {
  NamedTensors chosen;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.requires_grad()) chosen.emplace_back(name, parameter);
  }
  return chosen;
}

namespace detail {

void refuse_decay_scale() {
  throw ValueError("param_groups: weight_decay_scale: this optimizer has no weight_decay");
}

}  // namespace detail
}  // namespace bellows::optim
