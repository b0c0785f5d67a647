// Models by name, for configuration files and the command line.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bellows/core/options.h"
#include "bellows/nn/model.h"

namespace bellows::nn {

/// A value that a program builds, extends and passes on; there is no hidden global list.
class Registry {
 public:
  /// Reads its settings from the options (each `get` states type and default) and builds the model
  /// on the CPU. Initial weights come from the global generator: seed it before.
  using Factory = std::function<Model(Options&)>;

  /// Throws ValueError when the name is taken.
  void add(const std::string& name, Factory factory, std::string description = "");
  /// Builds a model; an unknown name is a ValueError that lists the names and the nearest one. An
  /// option that the factory did not read is left for the caller's `reject_unknown`.
  Model make(const std::string& name, Options& options) const;
  std::vector<std::string> names() const;
  /// What was given to add. Throws as make.
  const std::string& description(const std::string& name) const;

 private:
  struct Entry {
    Factory factory;
    std::string description;
  };
  const Entry& entry(const std::string& name) const;

  std::map<std::string, Entry> entries_;
};

/// The models that come with Bellows: mlp, convnet, resnet18, lstm, transformer.
Registry builtin_models();

}  // namespace bellows::nn
