// A line that is written over, for whoever sits at a terminal.
#pragma once

#include <chrono>
#include <ostream>
#include <string>
#include <unistd.h>

#include "bellows/core/clock.h"

namespace bellows::cli {

/// Writes to standard error, at most ten times a second, and nothing where that is no terminal.
class ProgressLine {
 public:
  explicit ProgressLine(std::ostream& out, bool terminal = isatty(STDERR_FILENO) != 0)
      : out_(out), terminal_(terminal) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text) {
    const auto now = monotonic_clock().now();
    if (!terminal_ || (shown_ && now - last_ < std::chrono::milliseconds(100))) return;
    out_ << "\r\x1b[K" << text << std::flush;
    shown_ = true;
    last_ = now;
  }
  void clear() {
    if (shown_) out_ << "\r\x1b[K" << std::flush;
    shown_ = false;
  }

 private:
  std::ostream& out_;
  const bool terminal_;
  bool shown_ = false;
  Clock::Duration last_{};
};

}  // namespace bellows::cli
