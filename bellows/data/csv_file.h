// The numbers of a CSV file, checked. Without LibTorch, so that it can be fuzzed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::data {

struct CsvNumbers {
  std::vector<std::string> columns;
  std::vector<double> values;  // row by row
};

/// Of a file's whole text; `path` is for messages. Throws as read_csv.
CsvNumbers parse_csv(std::string_view text, const std::filesystem::path& path, char separator,
                     bool header, std::optional<double> missing);

}  // namespace bellows::data
