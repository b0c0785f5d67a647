// The signals that the launcher waits for, as something to poll: none can come between two calls.
#pragma once

#include <csignal>
#include <optional>
#include <set>
#include <string>

#include "bellows/launch/descriptor.h"

namespace bellows::launch {

class SignalQueue {
 public:
  /// Blocks SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT and `more` in this thread.
  /// Those that the parent had ignored (nohup) stay ignored. SIGPIPE and SIGXFSZ
  /// become errors of the write.
  explicit SignalQueue(const std::set<int>& more);
  /// As before.
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return queue_.get(); }
  /// The next one that has come.
  std::optional<int> next() const;
  /// What a program started from here finds; async-signal-safe.
  void restore() const;

 private:
  Descriptor queue_;
  sigset_t programs_{};  // the mask for programs
  sigset_t before_{};
  struct sigaction pipe_ {
  }, size_{}, child_{};
};

/// "SIGKILL"; "signal 34" for one without a name.
std::string signal_name(int signal);
/// The reverse, with or without "SIG"; nothing where there is none.
std::optional<int> signal_number(const std::string& name);

}  // namespace bellows::launch
