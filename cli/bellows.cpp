// `bellows`: starts in milliseconds and needs no LibTorch. What needs tensors is done by
// `bellows-torch`, which it finds beside itself and executes with LibTorch's folder on the library
// path, the way git finds its commands.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include "bellows/core/exit_code.h"
#include "bellows/core/file.h"
#include "bellows/core/interrupt.h"
#include "bellows/core/text.h"
#include "cli/doctor.h"
#include "cli/find_libtorch.h"
#include "cli/launch.h"
#include "cli/library_path.h"
#include "cli/output.h"

namespace bellows::cli {
namespace {

struct Command {
  const char* name;
  const char* help;
};
constexpr std::array kCommands = {
    Command{"train", "Train the model that a configuration file describes"},
    Command{"eval", "Evaluate a run or a checkpoint on its test data"},
    Command{"launch", "Start the ranks of a job, as torchrun does"},
    Command{"data", "Inspect data sets; measure how fast they are read"},
    Command{"checkpoint", "Inspect, verify, convert and compare files of weights"},
    Command{"find-batch", "Find the largest batch that fits into a device's memory"},
    Command{"estimate", "Estimate the memory of a training step without taking it"},
    Command{"models", "List the models that a configuration can name"},
    Command{"doctor", "Print what this machine, its LibTorch and its devices are like"},
};

void print_help(std::ostream& out) {
  out << "Bellows " BELLOWS_VERSION
         ": training for PyTorch models in C++\n\n"
         "Usage: bellows [--libtorch DIR] COMMAND [ARGUMENTS]\n\nCommands:\n";
  for (const auto& command : kCommands) {
    out << "  " << command.name << std::string(12 - std::strlen(command.name), ' ') << command.help
        << '\n';
  }
  out << "\nOptions:\n"
         "  --libtorch DIR  LibTorch's folder (the one that holds lib/libtorch_cpu.so)\n"
         "  --version       Print the version\n"
         "  --help          Print this text; bellows COMMAND --help tells more\n\n"
         "Environment: LIBTORCH (as --libtorch), BELLOWS_LOG=debug|info|warn|error|off\n";
}

int fail(const std::string& message, ExitCode code) {
  std::cerr << "bellows: " << message << std::endl;
  return static_cast<int>(code);
}

int unknown(const std::string& what, const std::string& word,
            std::span<const std::string> candidates) {
  const auto guess = nearest(word, candidates);
  return fail("unknown " + what + " '" + word + "'" +
                  (guess.empty() ? "; bellows --help lists what there is"
                                 : "; did you mean '" + guess + "'?"),
              ExitCode::usage);
}

int exec_torch(const std::vector<std::string>& words, const std::string& libtorch) {
  const auto search = find_libtorch(libtorch);
  if (!search.root) {
    std::string message = "LibTorch was not found. Looked at\n";
    for (const auto& place : search.looked_at) message += "  " + place + "\n";
    return fail(
        message +
            "Name its folder (the one that holds lib/libtorch_cpu.so) with --libtorch or LIBTORCH",
        ExitCode::environment);
  }
  if (const auto damage = damage_of(*search.root)) return fail(*damage, ExitCode::environment);
  if (const auto mismatch = mismatch_of(*search.root)) {
    return fail(*mismatch + "; name one of that version with --libtorch, or build Bellows anew",
                ExitCode::environment);
  }
  const std::string program = (program_folder() / "bellows-torch").string();
  const char* old = std::getenv("LD_LIBRARY_PATH");
  const std::string path =
      (*search.root / "lib").string() + (old && *old ? std::string(":") + old : "");
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return fail(program + ": " + std::strerror(errno) + "; it belongs beside bellows, reinstall both",
              ExitCode::environment);
}

/// `prints`: standard output was open at the start.
int run(std::vector<std::string> words, bool prints) {
  const std::vector<std::string> options{"--help", "--version", "--libtorch"};
  std::string libtorch;
  while (!words.empty() && words[0].starts_with("-")) {
    const std::string word = words[0];
    words.erase(words.begin());
    if (word == "--help" || word == "-h") {
      print_help(std::cout);
      return 0;
    }
    if (word == "--version" || word == "-V") {
      std::cout << "bellows " BELLOWS_VERSION << std::endl;
      return 0;
    }
    if (word.starts_with("--libtorch=")) {
      libtorch = word.substr(std::string_view("--libtorch=").size());
    } else if (word == "--libtorch") {
      if (words.empty()) return fail("--libtorch needs a folder", ExitCode::usage);
      libtorch = words[0];
      words.erase(words.begin());
    } else {
      return unknown("option", word, options);
    }
  }
  if (words.empty()) {
    print_help(std::cerr);
    return static_cast<int>(ExitCode::usage);
  }
  if (words[0] == "launch") {
    return launch({words.begin() + 1, words.end()}, [&](const bellows::launch::Options&) {
      const char* path = std::getenv("LD_LIBRARY_PATH");
      setenv(kLibraryPathBefore, path == nullptr ? "" : path, 1);  // for the ranks
      return exec_torch(words, libtorch);
    });
  }
  if (!prints && words[0] != "train") {
    return fail("standard output is closed, expected one to print to", ExitCode::failed);
  }
  if (words[0] != "train") interrupts_end_process();  // only training has something to save
  if (words[0] == "doctor") return doctor({words.begin() + 1, words.end()}, libtorch);
  std::vector<std::string> names;
  for (const auto& command : kCommands) names.emplace_back(command.name);
  names.emplace_back("devices");  // for doctor
  if (std::find(names.begin(), names.end(), words[0]) == names.end())
    return unknown("command", words[0], names);
  return exec_torch(words, libtorch);
}

}  // namespace
}  // namespace bellows::cli

namespace {
// Before anything else in the process: a signal that comes while programs load is kept, and
// answered once bellows-torch can save.
void hold_first(int, char**, char**) {
  bellows::hold_interrupts();
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const hold_first_pointer)(int, char**,
                                                                               char**) = hold_first;
}  // namespace

int main(int argc, char** argv) {
  const bool prints = ::fcntl(STDOUT_FILENO, F_GETFD) != -1;
  bellows::open_standard_streams();
  return bellows::cli::after_output(bellows::cli::run({argv + 1, argv + argc}, prints));
}
