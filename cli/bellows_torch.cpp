// `bellows-torch`: the commands that need tensors. Started by `bellows`; can also be called by
// itself.
#include <cstdlib>
#include <iostream>
#include <string>

#include "bellows/core/cuda_state.h"
#include "bellows/core/exit_code.h"
#include "bellows/core/interrupt.h"
#include "bellows/device/device.h"
#include "bellows/device/init.h"
#include "bellows/nn/registry.h"
#include "bellows/nodes/launch_nodes.h"
#include "bellows/train/train_main.h"
#include "cli/checkpoint_command.h"
#include "cli/data_command.h"
#include "cli/launch.h"
#include "cli/library_path.h"
#include "cli/memory_commands.h"
#include "cli/output.h"

namespace {

int models() {
  const auto registry = bellows::nn::builtin_models();
  for (const auto& name : registry.names()) {
    std::cout << name << std::string(name.size() < 12 ? 12 - name.size() : 1, ' ')
              << registry.description(name) << '\n';
  }
  return 0;
}

/// CUDA's state, then one line per device, fields between tabs: for `bellows doctor`.
int devices() {
  bellows::init();
  const auto report = bellows::cuda_report();
  std::cout << "state\t" << bellows::to_string(report.state) << '\t' << report.sentence << '\t'
            << report.remedy << '\n';
  for (const auto& device : bellows::list_devices()) {
    std::cout << bellows::device_name(device.device) << '\t' << device.name << '\t'
              << device.memory_bytes << '\t' << device.compute_capability << '\n';
  }
  return 0;
}

/// `bellows launch` of several nodes. The ranks find the environment that `bellows` found.
int launch_nodes(int argc, char** argv) {
  if (const char* before = std::getenv(bellows::cli::kLibraryPathBefore)) {
    const std::string path = before;
    path.empty() ? unsetenv("LD_LIBRARY_PATH") : setenv("LD_LIBRARY_PATH", path.c_str(), 1);
    unsetenv(bellows::cli::kLibraryPathBefore);
  }
  return bellows::cli::launch({argv + 2, argv + argc}, [](const bellows::launch::Options& options) {
    return bellows::nodes::launch(options);
  });
}

int run(const std::string& command, int argc, char** argv) {
  try {
    if (command == "eval") return bellows::eval_main(argc - 1, argv + 1);
    if (command == "data") return bellows::cli::data_command(argc - 1, argv + 1);
    if (command == "checkpoint") return bellows::cli::checkpoint_command(argc - 1, argv + 1);
    if (command == "find-batch") return bellows::cli::find_batch_command(argc - 1, argv + 1);
    if (command == "estimate") return bellows::cli::estimate_command(argc - 1, argv + 1);
    if (command == "models" && argc == 2) return models();
    if (command == "devices" && argc == 2) return devices();
  } catch (const std::exception& error) {
    std::cerr << "bellows-torch: " << error.what() << std::endl;
    return static_cast<int>(bellows::exit_code(error));
  }
  if (command == "models") {
    std::cerr
        << "bellows models: takes no arguments; it lists the models that a configuration can name"
        << std::endl;
  } else {
    std::cerr
        << "bellows-torch: expected train, eval, launch, data, checkpoint, find-batch, estimate, "
           "models or devices; it is started by bellows"
        << std::endl;
  }
  return static_cast<int>(bellows::ExitCode::usage);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "train")
    return bellows::train_main(argc - 1, argv + 1);          // lost output does not end it
  if (command == "launch") return launch_nodes(argc, argv);  // nor this, and it handles signals
  bellows::interrupts_end_process();
  return bellows::cli::after_output(run(command, argc, argv));
}
