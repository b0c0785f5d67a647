// `bellows-torch`: the commands that need tensors. Started by `bellows`; can also be called by
// itself.
#include <iostream>
#include <string>

#include "bellows/core/cuda_state.h"
#include "bellows/core/exit_code.h"
#include "bellows/core/interrupt.h"
#include "bellows/device/device.h"
#include "bellows/device/init.h"
#include "bellows/nn/registry.h"
#include "bellows/train/train_main.h"
#include "cli/checkpoint_command.h"
#include "cli/data_command.h"

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

/// A command's exit code; 1 where what it printed got lost.
int after_output(int code) {
  if (std::cout.flush() || code != 0) return code;
  std::cerr << "bellows: standard output cannot be written; a full disk?" << std::endl;
  return static_cast<int>(bellows::ExitCode::failed);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "train") return bellows::train_main(argc - 1, argv + 1);
  bellows::interrupts_end_process();
  try {
    if (command == "eval") return after_output(bellows::eval_main(argc - 1, argv + 1));
    if (command == "data") return after_output(bellows::cli::data_command(argc - 1, argv + 1));
    if (command == "checkpoint")
      return after_output(bellows::cli::checkpoint_command(argc - 1, argv + 1));
    if (command == "models" && argc == 2) return after_output(models());
    if (command == "devices" && argc == 2) return after_output(devices());
  } catch (const std::exception& error) {
    std::cerr << "bellows-torch: " << error.what() << std::endl;
    return static_cast<int>(bellows::exit_code(error));
  }
  if (command == "models") {
    std::cerr
        << "bellows models: takes no arguments; it lists the models that a configuration can name"
        << std::endl;
  } else {
    std::cerr << "bellows-torch: expected train, eval, data, checkpoint, models or devices; it is "
                 "started by bellows"
              << std::endl;
  }
  return static_cast<int>(bellows::ExitCode::usage);
}
