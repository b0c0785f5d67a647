// Tables of numbers as comma-separated values.
// Source: RFC 4180 (quoted fields, either line ending), with any one-character separator.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bellows/data/tensor_dataset.h"

namespace bellows::data {

struct CsvOptions {
  char separator = ',';
  /// Whether the first line names the columns; else they are called 0, 1, 2, …
  bool header = true;
  /// Taken for an empty field; unset: an empty field is an error.
  std::optional<double> missing = std::nullopt;
};

struct CsvTable {
  std::vector<std::string> columns;
  at::Tensor values;  ///< float64 [rows, columns]

  /// The place of a column. Throws ValueError with the nearest name.
  int64_t column(const std::string& name) const;
};

/// Reads a plain or gzip-compressed file of numbers. Throws FileError, and CorruptFileError naming
/// file, line, column, what was found and what was expected: a field that is no number, a line of
/// another length, a quote that is not closed, no rows, damaged gzip data. Memory: three times the
/// file.
CsvTable read_csv(const std::filesystem::path& path, const CsvOptions& options = {});

/// Sample i: the list {row i without the target as float32, its target}. The target is int64 where
/// all its values are whole numbers, else float32. `columns`: gets the names of all columns. Throws
/// as read_csv; ValueError for an unknown target or no other column.
TensorDataset read_csv_dataset(const std::filesystem::path& path, const std::string& target,
                               const CsvOptions& options = {},
                               std::vector<std::string>* columns = nullptr);

}  // namespace bellows::data
