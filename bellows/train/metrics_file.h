// metrics.jsonl: one JSON object per line, for people's own scripts.
#pragma once

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "bellows/core/file.h"
#include "bellows/train/callback.h"

namespace bellows::train {

/// Appends lines such as
/// {"event":"epoch","rank":0,"step":469,"epoch":1,"time":1767225600.5,"test_loss":0.31}. "time" is
/// seconds since 1970. NaN and infinities, which JSON lacks, are null. Every line is one write, so
/// that lines of several threads never mix and a killed process leaves at most one torn line, which
/// the next opening removes.
class MetricsFile : public Callback {
 public:
  explicit MetricsFile(std::filesystem::path path, int64_t rank = 0);

  /// Any thread. Throws FileError.
  void write(const std::string& event, int64_t step, int64_t epoch, const Values& values);

  std::string name() const override { return "metrics_file"; }
  /// Without a `load_state_dict` before, removes what an earlier run left; else keeps the lines of
  /// its time.
  void on_start(Trainer&, const Progress&) override;
  void on_log(Trainer&, const Progress&, const Values&) override;
  void on_epoch(Trainer&, const Progress&, const Values&) override;
  void on_checkpoint(Trainer&, const Progress&) override;
  void on_end(Trainer&, const Progress&) override;
  /// The number of lines: after a resume nothing past it remains.
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  void open();

  std::filesystem::path path_;
  int64_t rank_;
  mutable std::mutex mutex_;
  std::optional<OutputFile> file_;
  int64_t lines_ = 0;
};

}  // namespace bellows::train
