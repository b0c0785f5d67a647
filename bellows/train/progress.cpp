#include "bellows/train/progress.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>
#include <sstream>

#include "bellows/core/text.h"

namespace bellows::train {
namespace {

constexpr int kBarWidth = 24;

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string bar(int64_t done, int64_t all) {
  const auto filled = static_cast<size_t>(all > 0 ? kBarWidth * done / all : 0);
  return "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "]";
}

}  // namespace

ProgressDisplay::ProgressDisplay(std::ostream& out, ProgressDisplayOptions options)
    : out_(out), options_(options) {}

void ProgressDisplay::on_start(Trainer&, const Progress& progress) {
  start_ = progress;
  shown_ = monotonic_clock().now();
}

bool ProgressDisplay::due() {
  const auto now = monotonic_clock().now();
  if (now - shown_ < (options_.terminal ? options_.redraw_every : options_.line_every))
    return false;
  shown_ = now;
  return true;
}

void ProgressDisplay::show(const std::string& line) {
  if (options_.terminal) {
    out_ << "\r\033[K" << line << std::flush;
    line_open_ = true;
  } else {
    out_ << line << std::endl;
  }
}

void ProgressDisplay::finish_line() {
  if (line_open_) out_ << "\r\033[K";
  line_open_ = false;
}

void ProgressDisplay::on_step(Trainer&, const Progress& p) {
  if (!due()) return;
  const double seconds = p.seconds - start_.seconds;
  const int64_t steps = p.step - start_.step;
  if (steps == 0 || seconds <= 0) return;
  const double rate = static_cast<double>(p.samples - start_.samples) / seconds;
  const int64_t steps_left = (p.epochs - p.epoch) * p.batches - p.batch;
  const double wait = (p.wait_seconds - start_.wait_seconds) / seconds;
  show(concat(
      "epoch ", p.epoch + 1, "/", p.epochs, " ", bar(p.batch, p.batches), " ", p.batch, "/",
      p.batches, "  loss ", fixed(p.loss, 4), "  ", fixed(rate, 0), " samples/s  data wait ",
      fixed(100 * wait, 1), " %  left ",
      human_seconds(seconds / static_cast<double>(steps) * static_cast<double>(steps_left))));
}

void ProgressDisplay::on_evaluation_batch(Trainer&, const Progress& p, int64_t batch,
                                          int64_t batches) {
  if (!due()) return;
  show(concat("epoch ", p.epoch + 1, "/", p.epochs, " ", bar(batch, batches), " ", batch, "/",
              batches, "  evaluating"));
}

void ProgressDisplay::on_epoch(Trainer&, const Progress& p, const Values& values) {
  std::string line = concat("epoch ", p.epoch, "/", p.epochs, " done, step ", p.step);
  for (const auto& [name, value] : values) line += concat("  ", name, " ", fixed(value, 4));
  const double seconds = p.seconds - start_.seconds;
  if (seconds > 0) {
    line += concat("  ", fixed(static_cast<double>(p.samples - start_.samples) / seconds, 0),
                   " samples/s");
  }
  finish_line();
  out_ << line << std::endl;
  shown_ = monotonic_clock().now();
}

void ProgressDisplay::on_end(Trainer&, const Progress&) {
  finish_line();
  out_ << std::flush;
}

}  // namespace bellows::train
