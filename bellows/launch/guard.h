// A small process that outlives the launcher by a moment: where the launcher is killed, the kernel
// ends the ranks (parent-death signal), and the guard what they have started in their process
// groups.
#pragma once

#include <sys/types.h>

#include "bellows/launch/descriptor.h"

namespace bellows::launch {

class Guard {
 public:
  /// Forks it. Throws EnvironmentError.
  Guard();
  /// Ends it; the groups are let be.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  pid_t pid() const { return pid_; }
  /// A rank writes its group here before it becomes its program: `watch` is async-signal-safe.
  void watch(pid_t group) const;
  /// The group has gone: its number may belong to others soon.
  void forget(pid_t group) const { watch(-group); }

 private:
  pid_t pid_ = -1;
  Descriptor pipe_;
};

}  // namespace bellows::launch
