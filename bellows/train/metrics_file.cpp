#include "bellows/train/metrics_file.h"

#include <nlohmann/json.hpp>

#include "bellows/core/clock.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"

namespace bellows::train {
namespace {

/// The first `count` lines of `text`, or as many whole ones as there are; `count` becomes their
/// number.
std::string first_lines(const std::string& text, int64_t& count) {
  size_t end = 0;
  for (int64_t line = 0; line < count; ++line) {
    const size_t newline = text.find('\n', end);
    if (newline == std::string::npos) count = line;
    if (newline != std::string::npos) end = newline + 1;
  }
  return text.substr(0, end);
}

}  // namespace

MetricsFile::MetricsFile(std::filesystem::path path, int64_t rank)
    : path_(std::move(path)), rank_(rank) {}

void MetricsFile::open() {
  const int64_t expected = lines_;
  const std::string kept =
      first_lines(std::filesystem::exists(path_) && lines_ > 0 ? read_file(path_) : "", lines_);
  if (lines_ < expected) {
    log::warn(concat(path_.string(), ": ", lines_, " lines are left of the ", expected,
                     " that the checkpoint knows of; going on after them"));
  }
  write_file_atomically(path_, kept);
  file_.emplace(path_, /*append=*/true);
}

void MetricsFile::write(const std::string& event, int64_t step, int64_t epoch,
                        const Values& values) {
  nlohmann::ordered_json line{{"event", event},
                              {"rank", rank_},
                              {"step", step},
                              {"epoch", epoch},
                              {"time", unix_seconds()}};
  for (const auto& [name, value] : values) line[name] = value;
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::lock_guard lock(mutex_);
  if (!file_) open();
  file_->write(text);
  ++lines_;
}

void MetricsFile::on_start(Trainer&, const Progress&) {
  const std::lock_guard lock(mutex_);
  if (!file_) open();
}

void MetricsFile::on_log(Trainer&, const Progress& progress, const Values& values) {
  write("log", progress.step, progress.epoch, values);
}

void MetricsFile::on_epoch(Trainer&, const Progress& progress, const Values& values) {
  write("epoch", progress.step, progress.epoch, values);
}

void MetricsFile::on_checkpoint(Trainer&, const Progress&) {
  const std::lock_guard lock(mutex_);
  if (file_) file_->sync();
}

void MetricsFile::on_end(Trainer& trainer, const Progress& progress) {
  on_checkpoint(trainer, progress);
}

Tree MetricsFile::state_dict() const {
  const std::lock_guard lock(mutex_);
  return Tree::Dict{{"lines", lines_}};
}

void MetricsFile::load_state_dict(const Tree& state) {
  const int64_t lines = state.at("lines").integer();
  const std::lock_guard lock(mutex_);
  file_.reset();
  lines_ = lines;
}

}  // namespace bellows::train
