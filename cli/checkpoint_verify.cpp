// `bellows checkpoint verify`: structure and checksums.
#include <iostream>

#include <CLI/CLI.hpp>

#include "bellows/checkpoint/weights_file.h"
#include "bellows/core/error.h"
#include "bellows/core/printable.h"
#include "bellows/core/text.h"
#include "bellows/train/command_line.h"
#include "cli/checkpoint_command.h"
#include "cli/progress_line.h"

namespace bellows::cli {
namespace {

enum class Outcome { whole, damaged, refused };

Outcome verify(const std::string& path) {
  ProgressLine line(std::cerr);
  std::vector<std::string> damage;
  std::string note;
  try {
    const auto file = checkpoint::open_weights_file(path);
    damage = file->damage([&](uint64_t done, uint64_t all) {
      line.show(concat(printable(path), ": ", human_bytes(static_cast<double>(done)), " of ",
                       human_bytes(static_cast<double>(all))));
    });
    note = concat(formats::name(file->kind()), ", ", file->entries().size(), " tensors",
                  file->has_checksums() ? "" : "; without checksums, its structure is right");
  } catch (const EnvironmentError& error) {  // damaged, or not there
    line.clear();
    std::cout << printable(error.what()) << '\n';
    return Outcome::damaged;
  } catch (const ValueError& error) {  // of another kind
    line.clear();
    std::cout << std::flush;
    std::cerr << "bellows checkpoint verify: " << printable(error.what()) << std::endl;
    return Outcome::refused;
  }
  line.clear();
  if (damage.empty()) {
    std::cout << printable(path) << ": whole (" << note << ")\n";
    return Outcome::whole;
  }
  std::cout << printable(path) << ": damaged (" << note << ")\n";
  for (const std::string& what : damage) std::cout << "  " << printable(what) << '\n';
  return Outcome::damaged;
}

}  // namespace

int checkpoint_verify(int argc, char** argv) {
  std::vector<std::string> paths;
  CLI::App app("Reads files of weights whole, compares checksums, and names what is damaged.",
               "bellows checkpoint verify");
  app.add_option("path", paths, "Checkpoint directories or files of weights")
      ->required()
      ->type_name("PATH");
  app.footer(
      "All of them are read. Exit codes: 0 all are whole, 3 one is damaged or absent, else 2: bad "
      "usage or another kind of file.");
  if (const auto code = train::parse(app, argc, argv)) return *code;
  ExitCode code_of_all = ExitCode::done;
  for (const std::string& path : paths) {
    const Outcome outcome = verify(path);
    if (outcome == Outcome::damaged) code_of_all = ExitCode::environment;
    if (outcome == Outcome::refused && code_of_all == ExitCode::done) code_of_all = ExitCode::usage;
  }
  return static_cast<int>(code_of_all);
}

}  // namespace bellows::cli
