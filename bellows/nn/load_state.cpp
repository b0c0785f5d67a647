#include "bellows/nn/load_state.h"

#include <map>
#include <optional>
#include <regex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/ScalarType.h>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"

namespace bellows::nn {
namespace {

/// An entry of the state under the name that it has after renaming.
struct Entry {
  std::string name;
  std::string original;
  at::Tensor value;

  std::string label() const { return name == original ? name : name + " (from " + original + ")"; }
};

class Renamer {
 public:
  explicit Renamer(const LoadOptions& options) : options_(options) {
    for (const Rename& rename : options.rename) {
      try {
        patterns_.emplace_back(std::regex(rename.pattern), rename.replacement);
      } catch (const std::regex_error& error) {
        throw ValueError(
            concat("load_state_dict: rename: '", rename.pattern,
                   "' is not a regular expression of ECMAScript's grammar: ", error.what()));
      }
    }
  }

  std::string operator()(const std::string& name) const {
    constexpr size_t kLongest = 4096;  // std::regex takes stack for every character
    if (!patterns_.empty() && name.size() > kLongest) {
      throw ValueError(concat("load_state_dict: rename: got a name of ", name.size(),
                              " characters, expected at most ", kLongest));
    }
    std::string out = name;
    if (out.starts_with(options_.strip_prefix)) out.erase(0, options_.strip_prefix.size());
    for (const auto& [pattern, replacement] : patterns_)
      out = std::regex_replace(out, pattern, replacement);
    return options_.add_prefix + out;
  }

 private:
  const LoadOptions& options_;
  std::vector<std::pair<std::regex, std::string>> patterns_;
};

std::string type_and_shape(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return concat(c10::getDtypeNames(tensor.scalar_type()).first, " ", tensor.sizes());
}

/// The value in the target's type; nothing where the target cannot hold it.
std::optional<at::Tensor> converted(const at::Tensor& value, const at::Tensor& target) {
  if (value.scalar_type() == target.scalar_type()) return value;
  if (value.is_complex() && !target.is_complex()) return std::nullopt;
  try {
    at::Tensor out = value.to(target.scalar_type());
    if (value.is_floating_point() && !target.is_floating_point() && !target.is_complex() &&
        !out.to(value.scalar_type()).equal(value)) {
      return std::nullopt;
    }
    return out;
  } catch (const c10::Error&) {  // a type without that conversion
    return std::nullopt;
  }
}

/// Why the values do not go into the target's type; empty where it is not for the values.
std::string values_that_do_not_fit(const at::Tensor& value, const at::Tensor& target) {
  if (!value.defined() || value.sizes() != target.sizes() || value.layout() != at::kStrided ||
      target.layout() != at::kStrided || !value.is_floating_point() || target.is_floating_point() ||
      target.is_complex()) {
    return "";
  }
  const at::Tensor exact = value.to(at::kDouble);
  const at::Tensor fractions = exact.isfinite().logical_and(exact.ne(exact.trunc()));
  if (fractions.any().item<bool>()) return " with fractions";
  return concat(" with values that ", c10::getDtypeNames(target.scalar_type()).first,
                " cannot hold");
}

/// The prefix with which all of `shorter` are among `longer`; empty where there is none.
std::string common_prefix(const std::vector<std::string>& longer,
                          const std::vector<std::string>& shorter) {
  if (longer.empty() || shorter.empty()) return "";
  const std::unordered_set<std::string> names(longer.begin(), longer.end());
  for (const std::string& name : longer) {
    if (!name.ends_with("." + shorter[0])) continue;
    const std::string prefix = name.substr(0, name.size() - shorter[0].size());
    const auto fits = [&](const std::string& end) { return names.contains(prefix + end); };
    if (std::all_of(shorter.begin(), shorter.end(), fits)) return prefix;
  }
  return "";
}

std::string advice(const IncompatibleKeys& report) {
  if (const auto prefix = common_prefix(report.unexpected_keys, report.missing_keys);
      !prefix.empty()) {
    return concat(" The state's names begin with '", prefix,
                  "', the model's do not: load with strip_prefix.");
  }
  if (const auto prefix = common_prefix(report.missing_keys, report.unexpected_keys);
      !prefix.empty()) {
    return concat(" The model's names begin with '", prefix,
                  "', the state's do not: load with add_prefix.");
  }
  return " Build the model with the options of the one that was saved.";
}

class Matching {
 public:
  Matching(const NamedTensors& targets, const Ties& ties) : targets_(targets) {
    for (size_t i = 0; i < targets.size(); ++i) place_of_.emplace(targets[i].first, i);
    for (const auto& [name, first] : ties) place_of_.emplace(name, place_of_.at(first));
    taken_.resize(targets.size());
    named_.resize(targets.size());
  }

  void add(const Entry& entry) {
    const auto [before, added] = seen_.emplace(entry.name, entry.original);
    if (!added) {
      named_twice_.push_back(
          entry.original == before->second
              ? entry.name + " (a second time)"
              : concat(before->second, " and ", entry.original, " (both become ", entry.name, ")"));
      return;
    }
    const auto place = place_of_.find(entry.name);
    if (place == place_of_.end()) {
      load_.report.unexpected_keys.push_back(entry.name);
      unexpected_.push_back(entry.label());
      return;
    }
    take(place->second, entry);
  }

  StateLoad finish(const LoadOptions& options) {
    std::vector<std::string>& missing = load_.report.missing_keys;
    for (size_t i = 0; i < targets_.size(); ++i) {
      if (!named_[i] && !came_later(i)) missing.push_back(targets_[i].first);
    }
    std::string faults;
    if (options.strict) {
      if (!missing.empty()) faults += concat(" Missing: ", join(missing), ".");
      if (!unexpected_.empty()) faults += concat(" Unexpected: ", join(unexpected_), ".");
    }
    if (!options.ignore_mismatched && !mismatched_.empty())
      faults += concat(" Mismatched: ", join(mismatched_, "; "), ".");
    if (!named_twice_.empty()) faults += concat(" Named twice: ", join(named_twice_), ".");
    if (!disagreeing_.empty()) {
      faults += concat(
          " One tensor in the model, but different values in the state: ", join(disagreeing_), ".");
    }
    if (!faults.empty()) {
      throw ValueError("The state does not fit the model." + faults + advice(load_.report));
    }
    return std::move(load_);
  }

 private:
  /// Whether it is a counter of a batch normalisation, all of which states from before PyTorch
  /// 0.4.1 lack: it keeps its value, as in _load_from_state_dict of torch/nn/modules/batchnorm.py.
  bool came_later(size_t place) const {
    constexpr std::string_view kCounter = "num_batches_tracked";
    const auto& [name, target] = targets_[place];
    if (!name.ends_with(kCounter) || target.dim() != 0 || target.scalar_type() != at::kLong)
      return false;
    const auto mean =
        place_of_.find(name.substr(0, name.size() - kCounter.size()) + "running_mean");
    return mean != place_of_.end() && named_[mean->second];
  }

  void take(size_t place, const Entry& entry) {
    const at::Tensor& target = targets_[place].second;
    named_[place] = true;
    if (target.is_meta() || (entry.value.defined() && entry.value.is_meta())) {
      mismatch(entry, entry.label() + " (on the meta device, which holds no values)");
      return;
    }
    const auto value = entry.value.defined() && entry.value.sizes() == target.sizes() &&
                               entry.value.layout() == target.layout()
                           ? converted(entry.value, target)
                           : std::nullopt;
    if (!value) {
      mismatch(entry, concat(entry.label(), " (got ", type_and_shape(entry.value),
                             values_that_do_not_fit(entry.value, target), ", expected ",
                             type_and_shape(target), ")"));
      return;
    }
    Entry& before = taken_[place];
    if (!before.value.defined()) {
      before = {entry.name, entry.original, *value};
      load_.copies.emplace_back(target, *value);
    } else if (!same_values(before.value, *value)) {
      disagreeing_.push_back(before.label() + " and " + entry.label());
    }
  }

  void mismatch(const Entry& entry, std::string text) {
    load_.report.mismatched_keys.push_back(entry.name);
    mismatched_.push_back(std::move(text));
  }

  static bool same_values(const at::Tensor& before, const at::Tensor& value) {
    if (before.is_same(value)) return true;
    return at::isclose(before, value.to(before.device()), 0, 0, /*equal_nan=*/true)
        .all()
        .item<bool>();
  }

  const NamedTensors& targets_;
  std::unordered_map<std::string, size_t> place_of_;
  std::unordered_map<std::string, std::string> seen_;  // name -> original
  std::vector<bool> named_;                            // by target: whether the state has it
  std::vector<Entry> taken_;                           // by target: the first entry that fits
  StateLoad load_;
  std::vector<std::string> unexpected_, mismatched_, named_twice_, disagreeing_;
};

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.data_ptr() == b.data_ptr() && a.strides() == b.strides();
}

/// A state may be the model's own, also under other names: what another copy will overwrite is
/// copied first, and what is in its place already needs no copy.
void settle_aliases(std::vector<std::pair<at::Tensor, at::Tensor>>& copies) {
  std::unordered_set<const c10::StorageImpl*> written;
  std::erase_if(copies, [](const auto& copy) { return same_memory(copy.first, copy.second); });
  for (const auto& [target, value] : copies) {
    if (target.has_storage()) written.insert(target.storage().unsafeGetStorageImpl());
  }
  for (auto& [target, value] : copies) {
    if (value.has_storage() && written.contains(value.storage().unsafeGetStorageImpl()))
      value = value.clone();
  }
}

}  // namespace

StateLoad plan_load(const NamedTensors& targets, const Ties& ties, const NamedTensors& state,
                    const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const Renamer renamed(options);
  Matching matching(targets, ties);
  for (const auto& [name, value] : state) matching.add({renamed(name), name, value});
  StateLoad load = matching.finish(options);
  if (load.copies.empty() && !state.empty() && !targets.empty()) {
    log::warn(concat("load_state_dict: none of the state's ", state.size(), " entries was loaded.",
                     advice(load.report)));
  }
  settle_aliases(load.copies);
  return load;
}

void apply(const StateLoad& load) {
  const at::NoGradGuard no_grad;
  for (const auto& [target, value] : load.copies) target.copy_(value);
}

NamedTensors joined_state(NamedTensors parameters, NamedTensors buffers, const Ties& ties,
                          Names names) {
  NamedTensors out = std::move(parameters);
  std::move(buffers.begin(), buffers.end(), std::back_inserter(out));
  for (auto& [name, tensor] : out) tensor = tensor.detach();
  if (names == Names::first || ties.empty()) return out;
  const std::unordered_map<std::string, at::Tensor> by_name(out.begin(), out.end());
  for (const auto& [name, first] : ties) out.emplace_back(name, by_name.at(first));
  return out;
}

}  // namespace bellows::nn
