#include "cli/data_command.h"

#include <exception>
#include <iostream>
#include <string>

#include "bellows/train/command_line.h"

namespace bellows::cli {

int data_command(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  std::string name = "bellows data";
  try {
    if (word == "inspect" || word == "bench") {
      name += " " + word;
      return word == "inspect" ? inspect_command(argc - 1, argv + 1)
                               : bench_command(argc - 1, argv + 1);
    }
    if (word == "--help" || word == "-h") {
      std::cout
          << "Usage: bellows data COMMAND [ARGUMENTS]\n\nCommands:\n"
             "  inspect   Print what a data set consists of: counts, shapes, classes, damage\n"
             "  bench     Measure the data of a configuration: stages, workers, what binds\n\n"
             "bellows data COMMAND --help tells more\n";
      return static_cast<int>(ExitCode::done);
    }
  } catch (const std::exception& error) {
    return train::report(name, error, exit_code(error));
  }
  std::cerr << "bellows data: expected inspect or bench"
            << (word.empty() ? "" : ", got '" + word + "'") << "; bellows data --help tells more"
            << std::endl;
  return static_cast<int>(ExitCode::usage);
}

}  // namespace bellows::cli
