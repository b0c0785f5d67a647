// The folder of one run: configuration, metrics, checkpoints, logs, summary (layout:
// docs/training.md).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/train/callback.h"

namespace bellows::train {

/// How a folder that may already hold a run is treated.
struct ResumeMode {
  /// "" for a new run, "auto" for the newest whole checkpoint of the folder (none: a new run), or
  /// the path of a checkpoint or of a run folder.
  std::string resume = "";
  /// Remove the run that is there.
  bool overwrite = false;
};

/// Holds the folder's lock for its lifetime: no second process can train into it. Move-only.
class RunDirectory {
 public:
  /// Checks everything before anything is changed, then creates the folder. Throws ValueError when
  /// the folder holds a run and neither resume nor overwrite was asked for, a path to resume
  /// from has no checkpoint, or one is of a newer version; EnvironmentError when it cannot be
  /// written, another process trains into it, or its checkpoints are all damaged.
  RunDirectory(std::filesystem::path path, const ResumeMode& mode);
  RunDirectory(RunDirectory&&) = default;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  /// The checkpoints to start from, the best first: with "auto" all whole ones from the newest on,
  /// for the case that a newer one turns out to be damaged when it is read. Empty: a new run.
  const std::vector<std::filesystem::path>& resume_candidates() const { return candidates_; }
  /// Removes checkpoints of this folder that come after `step`: their future is about to be trained
  /// anew.
  void drop_checkpoints_after(int64_t step) const;

 private:
  void lock();
  void check_left_out() const;

  std::filesystem::path path_;
  std::vector<std::filesystem::path> candidates_;
  std::shared_ptr<void> lock_;  // an open, locked file
};

/// The checkpoint that a path means: a checkpoint's own folder, or of a run folder the best
/// (`prefer_best`, where there is one) or else the newest whole one. Nothing when there is none.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& path,
                                                     bool prefer_best = false);

/// summary.json. Durations in seconds, memory in MiB.
struct Summary {
  std::string status;      // completed, stopped (early), interrupted or failed
  std::string error = "";  // the sentence of a failed run
  Progress progress = {};
  Values metrics = {};
  int64_t skipped_samples = 0;  // of the training data, in this process (data.on_error = "skip")
  std::string device = "";
  int64_t world_size = 1;
  std::string checkpoint = "";  // relative to the run folder; "" for none
};

/// Writes summary.json atomically. Throws FileError.
void write_summary(const std::filesystem::path& path, const Summary& summary);

}  // namespace bellows::train
