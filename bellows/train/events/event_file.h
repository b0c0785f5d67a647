// TensorBoard's event files: protobuf messages as records (records.h). Knows nothing of tensors:
// LibTorch's headers carry a protobuf of their own, which must not be seen beside the system's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/core/file.h"

namespace bellows::events {

struct Histogram {
  double min = 0;
  double max = 0;
  double count = 0;
  double sum = 0;
  double sum_squares = 0;
  std::vector<double> bucket_limits = {};  // upper edges, rising
  std::vector<double> buckets = {};        // values in each
};

/// Appends events to one file. Not thread-safe. Members throw FileError.
class EventFile {
 public:
  /// Opens `path`, keeping its first `keep_records` whole records and dropping what follows; a file
  /// that is not there, or has fewer, is as long as it is. A new file gets the version record that
  /// TensorBoard expects, which counts as one.
  explicit EventFile(std::filesystem::path path, int64_t keep_records = 0);

  /// `wall_time` in seconds since 1970; `step` is the x axis.
  void scalar(std::string_view tag, float value, int64_t step, double wall_time);
  void histogram(std::string_view tag, const Histogram& value, int64_t step, double wall_time);
  void text(std::string_view tag, std::string_view value, int64_t step, double wall_time);

  int64_t records() const { return records_; }
  /// Waits until everything is on the disk.
  void sync() { file_->sync(); }

 private:
  void append(std::string_view message);

  std::optional<OutputFile> file_;
  int64_t records_ = 0;
};

}  // namespace bellows::events
