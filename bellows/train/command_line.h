// What the programs that take a configuration file share: the command line, and how errors are
// told.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bellows/core/exit_code.h"
#include "bellows/train/config.h"
#include "bellows/train/error_text.h"

namespace bellows::train {

struct ConfigArguments {
  std::string config;
  std::vector<std::string> set;
  std::string device;
};

/// Adds --set and --device.
void add_common(CLI::App& app, ConfigArguments& arguments);
/// For options whose value must not be empty.
extern const CLI::Validator kNotEmpty;
/// Parses; gives an exit code when the program should end here (help, bad usage).
std::optional<int> parse(CLI::App& app, int argc, char** argv);

/// The file with what the command line says on top. Throws ValueError.
Config read_config(const ConfigArguments& arguments);
/// Calls init(). A configuration that asks for a simulated device gets it instead of CUDA.
void init_for(Config& config);

/// Prints it to standard error; gives the code.
int report(const std::string& program, const std::exception& error, ExitCode code);

}  // namespace bellows::train
