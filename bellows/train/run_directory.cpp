#include "bellows/train/run_directory.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"

namespace bellows::train {
namespace fs = std::filesystem;
namespace {

/// Entries of `folder` whose names `belongs` takes; none where there is no such folder.
template <class Belongs>
void add_entries(const fs::path& folder, Belongs belongs, std::vector<fs::path>& files) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (belongs(entry.path().filename().string())) files.push_back(entry.path());
  }
}

/// What a run writes into its folder; nothing else is ever removed.
std::vector<fs::path> run_files(const fs::path& folder) {
  std::vector<fs::path> files;
  add_entries(
      folder,
      [](const std::string& name) {
        return name == "config.toml" || name == "metrics.jsonl" || name == "summary.json" ||
               name.starts_with("events.out.tfevents.");
      },
      files);
  add_entries(
      folder / "checkpoints",
      [](const std::string& name) {
        return name == "best" || name == "last" || name.starts_with("step-") ||
               name.starts_with(".step-");
      },
      files);
  add_entries(
      folder / "logs", [](const std::string& name) { return name.starts_with("rank-"); }, files);
  return files;
}

}  // namespace

std::optional<fs::path> find_checkpoint(const fs::path& path, bool prefer_best) {
  std::error_code ignored;
  if (fs::exists(path / "checkpoint.json", ignored)) return path;
  const fs::path root =
      fs::is_directory(path / "checkpoints", ignored) ? path / "checkpoints" : path;
  if (prefer_best && fs::exists(root / "best" / "checkpoint.json", ignored))
    return fs::canonical(root / "best");
  if (!fs::is_directory(root, ignored)) return std::nullopt;
  return checkpoint::latest(root);
}

RunDirectory::RunDirectory(fs::path path, const ResumeMode& mode) : path_(std::move(path)) {
  std::error_code ignored;
  if (fs::exists(path_, ignored) && !fs::is_directory(path_, ignored)) {
    throw EnvironmentError(path_.string() +
                           ": the run directory is a file; name another with --run");
  }
  if (!mode.resume.empty() && mode.overwrite) {
    throw ValueError(
        "--resume and --overwrite exclude each other: the one goes on with a run, the other "
        "removes it");
  }
  if (mode.resume == "auto") {
    candidates_ = checkpoint::list(checkpoints());
    std::reverse(candidates_.begin(), candidates_.end());
    check_left_out();
  } else if (!mode.resume.empty()) {
    const auto found = find_checkpoint(mode.resume);
    if (!found) throw ValueError("--resume " + mode.resume + ": no whole checkpoint is there");
    candidates_ = {*found};
  }
  // What lies in a folder that no run has locked, and that has no checkpoint, is the user's.
  const auto old_files = run_files(path_);
  if (!old_files.empty() && !fs::exists(path_ / ".lock", ignored) &&
      !checkpoint::latest(checkpoints())) {
    throw ValueError(path_.string() + ": this directory holds " +
                     old_files[0].lexically_relative(path_).string() +
                     ", which no run wrote, and a run would write its own; name another directory "
                     "with --run");
  }
  if (fs::exists(path_, ignored)) lock();
  if (!old_files.empty() && mode.resume.empty() && !mode.overwrite) {
    throw ValueError(
        path_.string() +
        ": this directory holds a run already; go on with it by --resume auto, replace it by "
        "--overwrite, or name another by --run");
  }
  make_directories(path_);
  if (lock_.use_count() == 0) lock();
  if (candidates_.empty()) {
    for (const auto& file : old_files) fs::remove_all(file);
  }
  make_directories(checkpoints());
  make_directories(path_ / "logs");
  fs::remove(path_ / "summary.json", ignored);
}

// Going on without what cannot be read must not end in its being overwritten without a word.
void RunDirectory::check_left_out() const {
  const auto faults = checkpoint::faults(checkpoints());
  for (const auto& fault : faults) {
    if (fault.newer) throw ValueError(fault.what);
  }
  if (candidates_.empty() && !faults.empty()) {
    throw EnvironmentError(path_.string() +
                           ": there are checkpoints, but none is whole, the newest because of " +
                           faults.back().what +
                           "; name another to go on from with --resume, or remove this run with "
                           "--overwrite");
  }
}

void RunDirectory::lock() {
  const fs::path file = path_ / ".lock";
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) throw FileError(file, "the run directory cannot be written", errno);
  lock_ = std::shared_ptr<void>(nullptr, [descriptor](void*) { ::close(descriptor); });
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    throw EnvironmentError(path_.string() +
                           ": another process is training into this run directory");
  }
}

void RunDirectory::drop_checkpoints_after(int64_t step) const {
  for (const auto& directory : checkpoint::list(checkpoints())) {
    if (checkpoint::step_of(directory) > step) {
      log::warn(concat("removing ", directory.string(), ": the run goes on from step ", step));
      checkpoint::remove(directory);
    }
  }
}

void write_summary(const fs::path& path, const Summary& summary) {
  const Progress& p = summary.progress;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  nlohmann::ordered_json json{
      {"status", summary.status},
      {"epochs", p.epoch},
      {"steps", p.step},
      {"metrics", summary.metrics},
      {"seconds", p.seconds},
      {"samples_per_second", p.seconds > 0 ? static_cast<double>(p.samples) / p.seconds : 0.0},
      {"data_wait_share", p.seconds > 0 ? p.wait_seconds / p.seconds : 0.0},
      {"peak_rss_mb", static_cast<double>(usage.ru_maxrss) / 1024.0},
      {"device", summary.device},
      {"world_size", summary.world_size},
      {"checkpoint", summary.checkpoint}};
  if (summary.skipped_samples > 0) json["skipped_samples"] = summary.skipped_samples;
  if (!summary.error.empty()) json["error"] = summary.error;
  write_file_atomically(
      path, json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace bellows::train
