// `bellows checkpoint diff`: two files of weights, tensor by tensor.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>

#include <ATen/ops/view_as_real.h>
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

using checkpoint::WeightEntry;
using checkpoint::WeightsFile;

constexpr int64_t kPiece = int64_t{1} << 20;  // values compared at once

struct Difference {
  int64_t values = 0;
  double largest = 0;
};

// Adds the differences of two arrays; NaNs are the same as NaNs.
template <class T>
void compare(const T* a, const T* b, int64_t count, double tolerance, Difference& difference) {
  for (int64_t i = 0; i < count; ++i) {
    if (a[i] == b[i] || (a[i] != a[i] && b[i] != b[i])) continue;
    const double distance = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (distance <= tolerance) continue;
    ++difference.values;
    difference.largest = std::isnan(distance) ? distance : std::max(difference.largest, distance);
  }
}

Difference compare(at::Tensor a, at::Tensor b, double tolerance) {
  const auto plain = [](at::Tensor& tensor) {
    tensor = tensor.detach().resolve_conj().resolve_neg();
    if (tensor.is_complex()) tensor = at::view_as_real(tensor);
    tensor = tensor.contiguous().view({-1});
  };
  plain(a);
  plain(b);
  Difference difference;
  if (std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) return difference;
  const bool real = at::isFloatingType(a.scalar_type());
  const at::ScalarType type = real ? at::kDouble : at::kLong;
  for (int64_t begin = 0; begin < a.numel(); begin += kPiece) {
    const int64_t count = std::min(kPiece, a.numel() - begin);
    const at::Tensor left = a.narrow(0, begin, count).to(type);
    const at::Tensor right = b.narrow(0, begin, count).to(type);
    if (real) {
      compare(left.const_data_ptr<double>(), right.const_data_ptr<double>(), count, tolerance,
              difference);
    } else {
      compare(left.const_data_ptr<int64_t>(), right.const_data_ptr<int64_t>(), count, tolerance,
              difference);
    }
  }
  return difference;
}

std::string text_of(const WeightEntry& entry) {
  return concat(entry.type, ' ', at::IntArrayRef(entry.shape));
}

std::map<std::string, size_t> by_name(const WeightsFile& file) {
  std::map<std::string, size_t> names;
  for (size_t i = 0; i < file.entries().size(); ++i) names[file.entries()[i].name] = i;
  return names;
}

/// Prints every difference; gives the number of tensors that differ or are in one file alone.
int64_t print_differences(WeightsFile& a, WeightsFile& b, double tolerance) {
  const std::map<std::string, size_t> in_b = by_name(b);
  const std::map<std::string, size_t> in_a = by_name(a);
  ProgressLine line(std::cerr);
  int64_t different = 0;
  const auto print = [&](const std::string& text) {
    line.clear();
    std::cout << printable(text) << '\n';
    ++different;
  };
  for (const auto& [name, i] : in_a) {
    const WeightEntry& own = a.entries()[i];
    const auto found = in_b.find(name);
    line.show("comparing " + printable(name));
    if (found == in_b.end()) {
      print("only in the first: " + name + " " + text_of(own));
    } else if (const WeightEntry& other = b.entries()[found->second];
               text_of(own) != text_of(other)) {
      print(name + ": " + text_of(own) + " against " + text_of(other));
    } else if (const Difference d = compare(a.read(i), b.read(found->second), tolerance);
               d.values > 0) {
      print(concat(name, ": ", d.values, " values differ in ", text_of(own), ", the largest by ",
                   d.largest));
    }
  }
  for (const auto& [name, i] : in_b) {
    if (!in_a.contains(name)) print("only in the second: " + name + " " + text_of(b.entries()[i]));
  }
  return different;
}

}  // namespace

int checkpoint_diff(int argc, char** argv) {
  std::string first, second, select_first, select_second;
  double tolerance = 0;
  CLI::App app("Compares the weights of two checkpoints or files, of any kinds.",
               "bellows checkpoint diff");
  app.add_option("first", first, "A checkpoint directory or a file of weights")
      ->required()
      ->type_name("FIRST");
  app.add_option("second", second, "What it is compared with")->required()->type_name("SECOND");
  app.add_option("--select-first", select_first, "Only this part of FIRST, a torch.save file")
      ->type_name("KEY");
  app.add_option("--select-second", select_second, "Only this part of SECOND, a torch.save file")
      ->type_name("KEY");
  app.add_option("--tolerance", tolerance, "Values that differ by no more are the same")
      ->check([](const std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && std::isfinite(value) && value >= 0
                   ? std::string()
                   : "got '" + text + "', expected a finite number of at least 0";
      })
      ->capture_default_str();
  app.footer(
      "Exit codes: 0 the same, 1 they differ, 2 bad usage or another kind of file, 3 one is "
      "damaged or absent.");
  if (const auto code = train::parse(app, argc, argv)) return *code;

  const auto a = checkpoint::open_weights_file(first, select_first);
  const auto b = checkpoint::open_weights_file(second, select_second);
  a->check_names(first);
  b->check_names(second);
  const int64_t different = print_differences(*a, *b, tolerance);
  if (different == 0) {
    std::cout << a->entries().size() << " tensors are the same" << std::endl;
    return static_cast<int>(ExitCode::done);
  }
  std::cout << different << " tensors differ" << std::endl;
  return static_cast<int>(ExitCode::failed);
}

}  // namespace bellows::cli
