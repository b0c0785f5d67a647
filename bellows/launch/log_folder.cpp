#include "bellows/launch/log_folder.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>

#include "bellows/core/error.h"

namespace bellows::launch {
namespace fs = std::filesystem;
namespace {

bool writes(const Options& options, int rank, Streams stream) {
  const auto index = static_cast<size_t>(rank);
  return ((options.redirects.at(index) | options.tee.at(index)) & stream) != 0;
}

}  // namespace

LogFolder::LogFolder(const Options& options, const std::string& run_id) : options_(options) {
  bool wanted = false;
  for (int rank = 0; rank < options.ranks; ++rank) {
    wanted = wanted || writes(options, rank, kOut) || writes(options, rank, kErr);
  }
  if (!wanted) return;
  std::error_code error;
  fs::path base = options.log_dir;
  if (base.empty()) base = fs::temp_directory_path(error);
  if (!error) fs::create_directories(base, error);
  if (error) throw FileError(base, "mkdir", error.value());
  std::string name = (fs::absolute(base) / (run_id + "_XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) throw FileError(base, "mkdtemp", errno);
  path_ = name;
}

fs::path LogFolder::file_of(int generation, int rank, Streams stream) const {
  if (path_.empty() || !writes(options_, rank, stream)) return {};
  return path_ / ("attempt_" + std::to_string(generation)) / std::to_string(rank) /
         (stream == kOut ? "stdout.log" : "stderr.log");
}

Descriptor LogFolder::open(int generation, int rank, Streams stream) const {
  const fs::path path = file_of(generation, rank, stream);
  if (path.empty()) return {};
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) throw FileError(path.parent_path(), "mkdir", error.value());
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file.open()) throw FileError(path, "open", errno);
  return file;
}

}  // namespace bellows::launch
