// Files for ranks' output, laid out as torchrun does: LOG_DIR/RUN_XXXXXX/attempt_N/RANK/stdout.log.
#pragma once

#include <filesystem>
#include <string>

#include "bellows/launch/descriptor.h"
#include "bellows/launch/launch.h"

namespace bellows::launch {

class LogFolder {
 public:
  /// Makes the job's folder where a stream goes to a file. Throws FileError.
  LogFolder(const Options& options, const std::string& run_id);
  /// Empty where nothing goes to files.
  const std::filesystem::path& path() const { return path_; }
  /// Where that stream of that rank is written; empty where it is not.
  std::filesystem::path file_of(int generation, int rank, Streams stream) const;
  /// Creates it. Not open where it is not written. Throws FileError.
  Descriptor open(int generation, int rank, Streams stream) const;

 private:
  const Options& options_;
  std::filesystem::path path_;
};

}  // namespace bellows::launch
