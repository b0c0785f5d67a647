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

/// Whether it is whole.
bool verify(const std::string& path) {
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
    return false;
  }
  line.clear();
  if (damage.empty()) {
    std::cout << printable(path) << ": whole (" << note << ")\n";
    return true;
  }
  std::cout << printable(path) << ": damaged (" << note << ")\n";
  for (const std::string& what : damage) std::cout << "  " << printable(what) << '\n';
  return false;
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
      "Exit codes: 0 all are whole, 2 bad usage or another kind of file, 3 damaged or absent.");
  if (const auto code = train::parse(app, argc, argv)) return *code;
  bool whole = true;
  for (const std::string& path : paths) whole = verify(path) && whole;
  std::cout << std::flush;
  return static_cast<int>(whole ? ExitCode::done : ExitCode::environment);
}

}  // namespace bellows::cli
