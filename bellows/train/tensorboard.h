// TensorBoard: a writer for any program (the role of torch.utils.tensorboard.SummaryWriter), and
// the callback that logs a training run with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "bellows/train/callback.h"

namespace bellows::train {

/// Writes one file events.out.tfevents.<time>.<host>.<process> into a directory. Safe from every
/// thread. What has been added is handed to the operating system at once; `flush` also waits for
/// the disk. Throws FileError.
class SummaryWriter : public Stateful {
 public:
  /// Creates the directory and the file. An existing event file of the directory is continued
  /// instead when `load_state_dict` is called before the first value is added.
  explicit SummaryWriter(std::filesystem::path directory);
  ~SummaryWriter() override;

  void add_scalar(const std::string& tag, double value, int64_t step);
  /// All values of a tensor of any shape, number type and device (copied to the host). Buckets grow
  /// by a tenth from 1e-12 to 1e20 to both sides, as in torch/utils/tensorboard/writer.py. Throws
  /// ValueError for an empty tensor or one with NaN or infinite values.
  void add_histogram(const std::string& tag, const at::Tensor& values, int64_t step);
  /// Markdown.
  void add_text(const std::string& tag, const std::string& text, int64_t step);
  void flush();

  /// File name and number of records: after `load_state_dict` nothing past it remains.
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  struct File;
  File& file();

  std::filesystem::path directory_;
  std::string file_name_;
  int64_t keep_records_ = 0;
  std::unique_ptr<File> file_;
};

/// Scalars train/loss, train/lr, … at every log, test/… at the end of epochs.
class TensorBoardLogger : public Callback {
 public:
  explicit TensorBoardLogger(std::filesystem::path directory) : writer_(std::move(directory)) {}
  SummaryWriter& writer() { return writer_; }

  std::string name() const override { return "tensorboard"; }
  void on_start(Trainer&, const Progress&) override;
  void on_log(Trainer&, const Progress&, const Values&) override;
  void on_epoch(Trainer&, const Progress&, const Values&) override;
  void on_checkpoint(Trainer&, const Progress&) override { writer_.flush(); }
  void on_end(Trainer&, const Progress&) override { writer_.flush(); }
  Tree state_dict() const override { return writer_.state_dict(); }
  void load_state_dict(const Tree& state) override { writer_.load_state_dict(state); }

 private:
  SummaryWriter writer_;
};

}  // namespace bellows::train
