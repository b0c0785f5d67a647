#include "bellows/train/command_line.h"

#include <filesystem>
#include <iostream>
#include <system_error>

#include "bellows/core/error.h"
#include "bellows/device/device.h"
#include "bellows/device/init.h"

namespace bellows::train {
namespace fs = std::filesystem;

int report(const std::string& program, const std::exception& error, ExitCode code) {
  std::cout.flush();
  std::cerr << program << ": " << message_of(error) << std::endl;
  return static_cast<int>(code);
}

Config read_config(const ConfigArguments& arguments) {
  std::error_code ignored;
  const auto kind = fs::status(arguments.config, ignored).type();
  if (kind == fs::file_type::not_found)
    throw ValueError("'" + arguments.config + "': no such configuration file");
  if (kind != fs::file_type::regular && kind != fs::file_type::fifo) {
    throw ValueError("'" + arguments.config +
                     "' is not a file; expected a configuration file (TOML)");
  }
  Config config = Config::load(arguments.config);
  for (const auto& assignment : arguments.set) config.set(assignment);
  if (!arguments.device.empty()) config.table("run").set("device", arguments.device, "--device");
  return config;
}

void init_for(Config& config) {
  const auto device = config.table("run").find<std::string>("device").value_or("auto");
  if (device.starts_with("sim")) pick_device(device);
  init();
}

const CLI::Validator kNotEmpty(
    [](std::string& value) { return value.empty() ? "the value is empty" : ""; }, "");

void add_common(CLI::App& app, ConfigArguments& arguments) {
  app.add_option("--set", arguments.set, "Override one setting, e.g. optim.lr=3e-4 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--device", arguments.device,
                 "auto, cpu, cuda, cuda:N or sim:N (default: the configuration's run.device)")
      ->check(kNotEmpty);
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::cerr << app.get_name() << ": " << error.what() << "; --help tells more" << std::endl;
    return static_cast<int>(ExitCode::usage);
  }
}

}  // namespace bellows::train
