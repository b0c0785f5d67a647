// `bellows checkpoint convert`: the weights of any kind of file as safetensors or torch.save's.
#include <filesystem>
#include <iostream>

#include <CLI/CLI.hpp>

#include "bellows/checkpoint/safetensors.h"
#include "bellows/checkpoint/torch_file.h"
#include "bellows/checkpoint/weights_file.h"
#include "bellows/core/error.h"
#include "bellows/core/printable.h"
#include "bellows/core/text.h"
#include "bellows/train/command_line.h"
#include "cli/checkpoint_command.h"
#include "cli/progress_line.h"

namespace bellows::cli {
namespace {

namespace fs = std::filesystem;

NamedTensors read_all(const std::string& path, const std::string& select) {
  const auto file = checkpoint::open_weights_file(path, select);
  if (file->entries().empty()) throw ValueError(path + ": has no tensors to convert");
  file->check_names(path);
  ProgressLine line(std::cerr);
  NamedTensors tensors;
  for (size_t i = 0; i < file->entries().size(); ++i) {
    line.show(concat("reading tensor ", i + 1, " of ", file->entries().size()));
    tensors.emplace_back(file->entries()[i].name, file->read(i).detach());
  }
  return tensors;
}

}  // namespace

int checkpoint_convert(int argc, char** argv) {
  std::string in, out, select;
  bool force = false;
  CLI::App app("Writes the weights of a checkpoint or file in another form.",
               "bellows checkpoint convert");
  app.add_option("in", in, "A checkpoint directory or a file of weights, of any kind")
      ->required()
      ->type_name("IN");
  app.add_option("out", out, "FILE.safetensors, or FILE.pt for Python's torch.load")
      ->required()
      ->type_name("OUT");
  app.add_option("--select", select, "Of a torch.save file: only this part, such as model")
      ->type_name("KEY");
  app.add_flag("--force", force, "Replace OUT where it exists as a regular file");
  app.footer(
      "Exit codes: 0 done, 1 OUT cannot be written, 2 bad usage or another kind of file, 3 IN "
      "is damaged or absent.");
  if (const auto code = train::parse(app, argc, argv)) return *code;

  const std::string ending = fs::path(out).extension().string();
  const bool torch = ending == ".pt" || ending == ".pth";
  if (!torch && ending != ".safetensors") {
    throw ValueError("OUT: got '" + out +
                     "', expected a name that ends in .safetensors, .pt or .pth");
  }
  std::error_code ignored;  // what cannot be looked at, writing will name
  const fs::file_status there = fs::symlink_status(out, ignored);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    throw ValueError(out + ": is " +
                     (fs::is_symlink(there) ? "a symbolic link" : "no regular file") +
                     ", which is not replaced; name the file itself");
  }
  if (!force && fs::exists(there)) {
    throw ValueError(out + ": exists; name another file, or add --force to replace it");
  }
  const NamedTensors tensors = read_all(in, select);
  try {
    if (torch) {
      checkpoint::write_torch_file(out, checkpoint::state_dict_of(tensors));
    } else {
      checkpoint::write_safetensors(out, tensors);
    }
  } catch (const FileError& error) {
    return train::report("bellows checkpoint convert", error, ExitCode::failed);
  }
  std::cout << printable(out) << ": " << tensors.size() << " tensors" << std::endl;
  return static_cast<int>(ExitCode::done);
}

}  // namespace bellows::cli
