#include "cli/launch.h"

#include <iostream>

#include "bellows/core/exit_code.h"
#include "bellows/launch/flags.h"

namespace bellows::cli {

int launch(const std::vector<std::string>& arguments,
           const std::function<int(const bellows::launch::Options& options)>& several) {
  try {
    const auto options = bellows::launch::parse_flags(arguments);
    if (!options) {
      std::cout << bellows::launch::help_text() << std::flush;
      return 0;
    }
    return options->nodes.most > 1 ? several(*options) : bellows::launch::launch(*options);
  } catch (const std::exception& error) {
    std::cerr << "bellows launch: " << error.what() << std::endl;
    return static_cast<int>(exit_code(error));
  }
}

}  // namespace bellows::cli
