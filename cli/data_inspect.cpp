// `bellows data inspect`: counts, shapes, types, classes, damage, a contact sheet.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <thread>

#include <CLI/CLI.hpp>

#include "bellows/core/error.h"
#include "bellows/core/exit_code.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"
#include "bellows/data/summary.h"
#include "bellows/train/command_line.h"
#include "cli/contact_sheet.h"
#include "cli/data_command.h"
#include "cli/data_source.h"
#include "cli/progress_line.h"

namespace bellows::cli {
namespace {

struct InspectArguments {
  std::string source;
  std::string sheet;
  std::string target = "target";
  int64_t workers = std::max<int64_t>(1, std::thread::hardware_concurrency());
  int64_t damaged = 10;
};

std::string shape_text(const data::FieldSummary& field) {
  if (field.tensors == 0) return "";
  if (field.ranks_differ) return " of different ranks";
  std::string text;
  for (size_t d = 0; d < field.least.size(); ++d) {
    text += concat(d == 0 ? "" : ", ", field.least[d]);
    if (field.most[d] != field.least[d]) text += concat("..", field.most[d]);
  }
  return " [" + text + "]";
}

void print_fields(const data::Summary& summary) {
  for (const auto& [path, field] : summary.fields) {
    std::vector<std::string> types;
    for (const auto& [type, count] : field.types)
      types.push_back(count == summary.samples ? type : concat(type, " (", count, ")"));
    std::cout << "  " << (path.empty() ? "sample" : path) << ": " << join(types)
              << shape_text(field) << '\n';
  }
}

void print_classes(const data::Summary& summary, const std::vector<std::string>& names) {
  if (summary.classes.empty()) return;
  const auto by_count = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [least, most] =
      std::minmax_element(summary.classes.begin(), summary.classes.end(), by_count);
  std::cout << "  " << summary.classes.size() << " classes of " << least->second << " to "
            << most->second << " samples\n";
  constexpr size_t kMostPrinted = 20;
  size_t printed = 0;
  for (const auto& [label, count] : summary.classes) {
    if (printed++ == kMostPrinted) {
      std::cout << "    … and " << summary.classes.size() - kMostPrinted << " more\n";
      break;
    }
    const bool named = label < std::ssize(names);
    std::cout << "    " << (named ? names[static_cast<size_t>(label)] : std::to_string(label))
              << ": " << count << " (" << std::fixed << std::setprecision(1)
              << 100.0 * static_cast<double>(count) / static_cast<double>(summary.samples)
              << " %)\n";
  }
}

void print_damage(const data::Summary& summary) {
  if (summary.damaged == 0) return;
  std::cout << "  " << summary.damaged << " damaged";
  if (summary.damaged > std::ssize(summary.first_damaged))
    std::cout << ", the first " << summary.first_damaged.size();
  std::cout << ":\n";
  for (const data::SkippedSample& sample : summary.first_damaged)
    std::cout << "    " << sample.reason << '\n';
}

/// Whether all of it could be read.
bool inspect_part(const DataPart& part, const InspectArguments& arguments, ContactSheet* sheet) {
  ProgressLine line(std::cerr);
  data::SummaryOptions options{.workers = arguments.workers, .most_damaged = arguments.damaged};
  if (sheet != nullptr) options.on_sample = [sheet](const Tree& sample) { sheet->add(sample); };
  options.on_progress = [&](int64_t done, int64_t all) {
    line.show(concat(part.name, ": ", done, " of ", all, " samples"));
  };
  data::Summarizer summarizer(options);
  std::vector<std::string> classes;
  for (const auto& open : part.files) {
    try {
      const OpenedData opened = open();
      classes = opened.classes;
      if (opened.stream) {
        summarizer.add(opened.stream);
      } else {
        summarizer.add(opened.dataset);
      }
    } catch (const EnvironmentError& error) {
      summarizer.add_damage(error.what());
    }
  }
  line.clear();
  const data::Summary& summary = summarizer.summary();
  std::cout << part.name << ": " << summary.samples << " samples\n";
  print_fields(summary);
  print_classes(summary, classes);
  print_damage(summary);
  return summary.damaged == 0;
}

}  // namespace

int inspect_command(int argc, char** argv) {
  InspectArguments arguments;
  CLI::App app("Reads all samples of a data set and prints what it consists of.",
               "bellows data inspect");
  app.add_option("source", arguments.source,
                 "A folder (IDX or CIFAR files, tar shards, train.csv, images by class) or a file "
                 "(.tar, .csv, .npy, IDX)")
      ->required()
      ->type_name("SOURCE");
  app.add_option("--contact-sheet", arguments.sheet,
                 "Write a picture with the first images of each class")
      ->type_name("FILE.png");
  app.add_option("--target", arguments.target, "CSV: the target's column")->capture_default_str();
  app.add_option("--workers", arguments.workers, "Threads that read")->check(CLI::Range(1, 1024));
  app.add_option("--damaged", arguments.damaged, "How many damaged entries are printed")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  app.footer(
      "Exit codes: 0 all could be read, 1 output cannot be written, 2 bad usage, or nothing known "
      "lies there, 3 damaged data.");
  if (const auto code = train::parse(app, argc, argv)) return *code;

  const DataSource source = find_data(arguments.source, arguments.target);
  std::cout << arguments.source << ": " << source.kind << '\n';
  ContactSheet sheet;
  bool whole = true;
  for (const DataPart& part : source.parts)
    whole = inspect_part(part, arguments, arguments.sheet.empty() ? nullptr : &sheet) && whole;
  if (!arguments.sheet.empty()) {
    if (sheet.empty()) throw ValueError("--contact-sheet: there are no images in the samples");
    write_file_atomically(arguments.sheet, sheet.png());
    std::cout << "contact sheet " << arguments.sheet << '\n';
  }
  return static_cast<int>(whole ? ExitCode::done : ExitCode::environment);
}

}  // namespace bellows::cli
