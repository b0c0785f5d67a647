// State dictionaries of models: which names fit, how they are renamed, what is reported. Source of
// the behaviour: load_state_dict in torch/nn/modules/module.py.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bellows/tree/tree.h"

namespace torch::nn {
class Module;
}

namespace bellows::nn {

/// Every match of `pattern` in a name is replaced, as std::regex_replace does: ECMAScript's
/// grammar, `^` and `$` for the name's ends, `$1` in the replacement for the first group.
struct Rename {
  std::string pattern;
  std::string replacement;
};

/// How names in a state become names of the model: `strip_prefix` is taken off the names that begin
/// with it, then each of `rename` is applied in order, then `add_prefix` is put in front.
struct LoadOptions {
  /// Whether each of the model's tensors must be in the state, and nothing else. Otherwise what is
  /// missing keeps its value, and what is unexpected is left out; the report tells.
  bool strict = true;
  /// Leaves entries that do not go into their tensor (another shape; values it cannot hold) out,
  /// and reports them, in place of refusing the state.
  bool ignore_mismatched = false;
  /// For example "module.", which Python's DistributedDataParallel puts in front.
  std::string strip_prefix = {};
  std::vector<Rename> rename = {};
  std::string add_prefix = {};
};

/// What was not loaded, by the model's names (unexpected ones by the state's, renamed).
struct IncompatibleKeys {
  std::vector<std::string> missing_keys = {};
  std::vector<std::string> unexpected_keys = {};
  std::vector<std::string> mismatched_keys = {};
};

/// Names of tied tensors: (a further name, the first name, under which the tensor is listed), in
/// order of registration.
using Ties = std::vector<std::pair<std::string, std::string>>;

/// Which names of tied tensors a state dictionary has.
enum class Names {
  /// Each tensor once, under its first name: what checkpoints hold.
  first,
  /// Tied tensors under every name, as in Python, where a strict load asks for all of them.
  all,
};

/// The state of a module without making a Model of it: see Model::state_dict and load_state_dict.
NamedTensors state_dict(const torch::nn::Module& module, Names names = Names::first);
IncompatibleKeys load_state_dict(torch::nn::Module& module, const NamedTensors& state,
                                 const LoadOptions& options = {});

/// A holder (`Linear`) or pointer to a module.
template <class Handle>
concept ModuleHandle = requires(const Handle& handle) {
  static_cast<const torch::nn::Module&>(*handle);
};

template <ModuleHandle Handle>
NamedTensors state_dict(const Handle& module, Names names = Names::first) {
  return state_dict(static_cast<const torch::nn::Module&>(*module), names);
}
template <ModuleHandle Handle>
IncompatibleKeys load_state_dict(const Handle& module, const NamedTensors& state,
                                 const LoadOptions& options = {}) {
  // A handle's constness is not its module's.
  return load_state_dict(
      const_cast<torch::nn::Module&>(static_cast<const torch::nn::Module&>(*module)), state,
      options);
}

}  // namespace bellows::nn
