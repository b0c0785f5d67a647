// `bellows checkpoint inspect`: kind, tensors, sizes, the parts of a checkpoint.
#include <algorithm>
#include <iomanip>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bellows/checkpoint/manifest.h"
#include "bellows/checkpoint/weights_file.h"
#include "bellows/core/printable.h"
#include "bellows/core/text.h"
#include "bellows/train/command_line.h"
#include "cli/checkpoint_command.h"

namespace bellows::cli {
namespace {

using checkpoint::WeightEntry;
using formats::FileKind;
using nlohmann::json;

std::string shape_text(const WeightEntry& entry) {
  return concat(at::IntArrayRef(entry.shape));
}

struct Totals {
  int64_t bytes = 0;
  int64_t values = 0;
};

Totals totals_of(const checkpoint::WeightsFile& file) {
  Totals totals;
  for (const WeightEntry& entry : file.entries()) {
    int64_t values = 1;
    for (const int64_t size : entry.shape) values *= size;
    totals.values += values;
    totals.bytes += entry.bytes;
  }
  return totals;
}

void print_json(const std::string& path, const checkpoint::WeightsFile& file) {
  json tensors = json::array();
  for (const WeightEntry& entry : file.entries()) {
    tensors.push_back({{"name", entry.name},
                       {"type", entry.type},
                       {"shape", entry.shape},
                       {"bytes", entry.bytes}});
  }
  const Totals totals = totals_of(file);
  json out = {{"path", path},
              {"kind", formats::name(file.kind())},
              {"metadata", file.metadata()},
              {"tensors", std::move(tensors)},
              {"values", totals.values},
              {"bytes", totals.bytes}};
  if (file.kind() == FileKind::checkpoint_directory) {
    const checkpoint::Manifest manifest = checkpoint::read_manifest(path);
    out["step"] = manifest.step;
    for (const auto& [name, digest] : manifest.files) out["files"][name] = digest.bytes;
    out["parts"] = json::array();
    for (const auto& [name, part] : manifest.parts) out["parts"].push_back(name);
  }
  std::cout << out.dump(2, ' ', false, json::error_handler_t::replace) << '\n';
}

void print_checkpoint(const std::string& path) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(path);
  std::vector<std::string> parts;
  for (const auto& [name, part] : manifest.parts) parts.push_back(name);
  std::cout << "  step " << manifest.step << "; parts: " << printable(join(parts)) << '\n';
  for (const auto& [name, digest] : manifest.files) {
    std::cout << "  " << printable(name) << ": " << human_bytes(static_cast<double>(digest.bytes))
              << '\n';
  }
}

void print_table(const checkpoint::WeightsFile& file) {
  size_t name_width = 4, type_width = 4, shape_width = 5;
  for (const WeightEntry& entry : file.entries()) {
    name_width = std::max(name_width, std::min<size_t>(printable(entry.name).size(), 60));
    type_width = std::max(type_width, printable(entry.type).size());
    shape_width = std::max(shape_width, shape_text(entry).size());
  }
  const auto row = [&](const std::string& name, const std::string& type, const std::string& shape,
                       const std::string& bytes) {
    std::cout << "  " << std::left << std::setw(static_cast<int>(name_width)) << name << "  "
              << std::setw(static_cast<int>(type_width)) << type << "  "
              << std::setw(static_cast<int>(shape_width)) << shape << "  " << std::right
              << std::setw(12) << bytes << '\n';
  };
  if (!file.entries().empty()) row("name", "type", "shape", "bytes");
  for (const WeightEntry& entry : file.entries()) {
    row(printable(entry.name), printable(entry.type), shape_text(entry),
        std::to_string(entry.bytes));
  }
}

void print_text(const std::string& path, const checkpoint::WeightsFile& file) {
  std::cout << printable(path) << ": " << formats::name(file.kind()) << '\n';
  if (file.kind() == FileKind::checkpoint_directory) print_checkpoint(path);
  for (const auto& [key, value] : file.metadata())
    std::cout << "  " << printable(key) << " = " << printable(value) << '\n';
  print_table(file);
  const Totals totals = totals_of(file);
  std::cout << file.entries().size() << " tensors, " << totals.values << " values, "
            << human_bytes(static_cast<double>(totals.bytes)) << '\n';
}

}  // namespace

int checkpoint_inspect(int argc, char** argv) {
  std::vector<std::string> paths;
  std::string select;
  bool as_json = false;
  CLI::App app("Prints what tensors files of weights hold, without reading them.",
               "bellows checkpoint inspect");
  app.add_option("path", paths, "Checkpoint directories or files of weights")
      ->required()
      ->type_name("PATH");
  app.add_option("--select", select, "Of a torch.save file: only this part, such as model")
      ->type_name("KEY");
  app.add_flag("--json", as_json, "One JSON object a path");
  app.footer("Exit codes: 0 done, 2 bad usage or another kind of file, 3 damaged or absent.");
  if (const auto code = train::parse(app, argc, argv)) return *code;
  for (const std::string& path : paths) {
    const auto file = checkpoint::open_weights_file(path, select);
    if (as_json) {
      print_json(path, *file);
    } else {
      print_text(path, *file);
    }
  }
  std::cout << std::flush;
  return static_cast<int>(ExitCode::done);
}

}  // namespace bellows::cli
