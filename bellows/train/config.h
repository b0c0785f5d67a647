// Configuration files (TOML) and `--set key=value`, as tables of Options.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "bellows/core/options.h"

namespace bellows::train {

/// The tables of a training configuration: run, data, model, optim, schedule, precision, parallel,
/// checkpoint, early_stopping. Who reads a key states its type and default (core/options.h); what
/// nobody read is unknown.
class Config {
 public:
  Config();
  /// Throws FileError when the file cannot be read, ValueError "<file>:<line>: …" for bad TOML, an
  /// unknown table (with the nearest), a key outside of tables.
  static Config load(const std::filesystem::path& path);

  /// "optim.lr=3e-4": the value as TOML writes it; a bare word is taken as a string. A later call
  /// wins over an earlier one and over the file. Throws ValueError that quotes the assignment.
  void set(const std::string& assignment);

  /// The table of that name; it exists, maybe empty.
  Options& table(const std::string& name);

  /// Throws ValueError for the first key that nobody has read.
  void reject_unknown() const;
  /// Every key read, with the value in force, as TOML that `load` reads back to the same.
  std::string resolved() const;

 private:
  std::map<std::string, Options> tables_;
};

}  // namespace bellows::train
