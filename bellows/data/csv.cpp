#include "bellows/data/csv.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/byte_source.h"
#include "bellows/data/csv_file.h"

namespace bellows::data {
namespace {

std::string read_all(const std::filesystem::path& path, std::filesystem::path& found) {
  OpenedFile file = open_maybe_gzip(path);
  found = file.path;
  std::string text;
  constexpr size_t kPiece = 1 << 20;
  for (size_t got = kPiece; got == kPiece;) {
    const size_t old = text.size();
    text.resize(old + kPiece);
    got = file.bytes->read(std::as_writable_bytes(std::span(text).subspan(old)));
    text.resize(old + got);
  }
  if (!file.bytes->defect().empty())
    throw CorruptFileError(found, concat("after ", text.size(), " bytes ", file.bytes->defect()));
  return text;
}

bool all_whole(const at::Tensor& values) {
  constexpr double kExact = 0x1p53;
  const auto* data = values.const_data_ptr<double>();
  return std::all_of(data, data + values.numel(), [](double value) {
    return std::abs(value) <= kExact && value == std::floor(value);
  });
}

// Refuses finite numbers that float32 would make infinite.
void check_float_range(const std::filesystem::path& path, const CsvTable& table, int64_t column) {
  const at::Tensor& values = table.values;
  const auto* data = values.const_data_ptr<double>();
  for (int64_t row = 0; row < values.size(0); ++row) {
    const double value = data[row * values.size(1) + column];
    if (std::isinf(value) || !std::isinf(static_cast<float>(value))) continue;
    throw CorruptFileError(path, concat("row ", row + 1, " below the header: column ",
                                        table.columns[static_cast<size_t>(column)], ": got ", value,
                                        ", out of range of a float32"));
  }
}

}  // namespace

int64_t CsvTable::column(const std::string& name) const {
  const auto found = std::find(columns.begin(), columns.end(), name);
  if (found != columns.end()) return found - columns.begin();
  const std::string near = nearest(name, columns);
  throw ValueError(concat("CSV: got column \"", name, "\", expected one of ", join(columns),
                          near.empty() ? "" : "; did you mean " + near + "?"));
}

CsvTable read_csv(const std::filesystem::path& path, const CsvOptions& options) {
  if (options.separator == '"' || options.separator == '\n' || options.separator == '\r')
    throw ValueError("CSV: got a quote or a line's end as separator, expected another character");
  std::filesystem::path found;
  const std::string text = read_all(path, found);
  CsvNumbers numbers = parse_csv(text, found, options.separator, options.header, options.missing);
  const auto columns = static_cast<int64_t>(numbers.columns.size());
  const at::Tensor values = at::empty({std::ssize(numbers.values) / columns, columns}, at::kDouble);
  std::copy(numbers.values.begin(), numbers.values.end(), values.mutable_data_ptr<double>());
  return {std::move(numbers.columns), values};
}

TensorDataset read_csv_dataset(const std::filesystem::path& path, const std::string& target,
                               const CsvOptions& options, std::vector<std::string>* names) {
  const CsvTable table = read_csv(path, options);
  if (names != nullptr) *names = table.columns;
  const int64_t place = table.column(target);
  const int64_t columns = table.values.size(1);
  if (columns < 2) {
    throw ValueError(concat("CSV: ", path.string(), " has no column but the target, ", target,
                            ", expected at least one more"));
  }
  const at::Tensor targets = table.values.select(1, place).contiguous();
  const at::Tensor inputs = at::cat(
      {table.values.narrow(1, 0, place), table.values.narrow(1, place + 1, columns - place - 1)},
      1);
  const bool classes = all_whole(targets);
  for (int64_t column = 0; column < columns; ++column) {
    if (column != place || !classes) check_float_range(path, table, column);
  }
  return TensorDataset({inputs.to(at::kFloat), targets.to(classes ? at::kLong : at::kFloat)});
}

}  // namespace bellows::data
