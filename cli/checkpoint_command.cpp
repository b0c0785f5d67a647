#include "cli/checkpoint_command.h"

#include <algorithm>
#include <array>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "bellows/core/printable.h"
#include "bellows/core/text.h"
#include "bellows/train/command_line.h"

namespace bellows::cli {
namespace {

struct Command {
  const char* name;
  int (*run)(int, char**);
  const char* help;
};
constexpr std::array kCommands = {
    Command{"inspect", checkpoint_inspect, "Print what tensors a file holds, and their sizes"},
    Command{"verify", checkpoint_verify, "Read files whole and name what is damaged"},
    Command{"convert", checkpoint_convert, "Write the weights as .safetensors or .pt"},
    Command{"diff", checkpoint_diff, "Compare two files tensor by tensor"},
};

}  // namespace

int checkpoint_command(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  if (word == "--help" || word == "-h") {
    std::cout << "Usage: bellows checkpoint COMMAND PATH…\n\nCommands:\n";
    for (const Command& command : kCommands) {
      std::cout << "  " << command.name << std::string(10 - std::string(command.name).size(), ' ')
                << command.help << '\n';
    }
    std::cout
        << "\nPATH: a checkpoint directory, a safetensors file, a file of Python's torch.save, "
           "a TorchScript\narchive or one of LibTorch's torch::save; told apart by content. "
           "No code in them is run.\n\nbellows checkpoint COMMAND --help tells more\n";
    return static_cast<int>(ExitCode::done);
  }
  const auto* const found = std::ranges::find(kCommands, word, &Command::name);
  if (found == kCommands.end()) {
    std::vector<std::string> names;
    for (const Command& command : kCommands) names.emplace_back(command.name);
    std::cerr << "bellows checkpoint: expected " << join(names)
              << (word.empty() ? "" : ", got '" + word + "'")
              << "; bellows checkpoint --help tells more" << std::endl;
    return static_cast<int>(ExitCode::usage);
  }
  try {
    return found->run(argc - 1, argv + 1);
  } catch (const std::exception& error) {
    // Errors quote what stands in files.
    std::cout.flush();
    std::cerr << "bellows checkpoint " << word << ": " << printable(train::message_of(error))
              << std::endl;
    return static_cast<int>(exit_code(error));
  }
}

}  // namespace bellows::cli
