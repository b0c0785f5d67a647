// The launcher's own standard output and error. Nothing here waits: what the reader does not take
// is kept, and ranks' pipes are left full meanwhile.
#pragma once

#include <memory>
#include <string>

#include "bellows/launch/launch.h"

namespace bellows::launch {

/// One descriptor and what has still to be written to it.
class Sink {
 public:
  explicit Sink(int fd);
  /// Whole lines are appended here.
  std::string& queue() { return queue_; }
  /// Writes what the reader takes now. A reader that has gone, or a full disk, ends the sink:
  /// from then on everything is dropped.
  void flush();
  bool pending() const { return queue_.size() > written_; }
  bool full() const { return queue_.size() - written_ > kFull; }
  int fd() const { return fd_; }

 private:
  static constexpr size_t kFull = 4 << 20;
  bool takes_more() const;
  int fd_;
  bool file_ = false;  // a regular file takes everything at once
  bool broken_ = false;
  std::string queue_;
  size_t written_ = 0;  // bytes at its beginning that need not be kept
};

/// Both; one sink where both descriptors are the same file, so that lines do not mix.
class Console {
 public:
  Console(int out, int err);
  Sink& of(Streams stream) { return stream == kErr ? *err_ : *out_; }
  /// The launcher's own words, on standard error.
  void say(const std::string& text) { err_->queue() += text; }
  bool full() const { return out_->full() || err_->full(); }
  bool pending() const { return out_->pending() || err_->pending(); }
  void flush();
  bool shared() const { return out_ == err_; }

 private:
  std::shared_ptr<Sink> out_, err_;
};

}  // namespace bellows::launch
