// Ranks of this machine, started by a program out of itself: the role of
// torch.multiprocessing.spawn.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/core/error.h"

namespace bellows::parallel {

/// What a rank runs. Its result is the rank's exit code.
using Entry = std::function<int(const std::vector<std::string>& arguments)>;

/// Makes a function known under a name, before spawn_entry(): `const bool known =
/// register_entry(…)` at namespace scope, or the first lines of main. Throws ValueError for a name
/// that is taken.
bool register_entry(const std::string& name, Entry entry);

/// To be called first in main, before any thread is started: in a process that spawn() has started
/// it does what that is for and ends it; in all others it returns at once.
void spawn_entry(int argc, char** argv);

/// Thrown where a rank has failed; the text is the launcher's report, which names the rank that
/// failed first and what it died of. `exit_code()` is that rank's, 128 + n for signal n.
class SpawnError : public Error {
 public:
  SpawnError(const std::string& report, int exit_code) : Error(report), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// Runs `name` in `ranks` processes with the environment of a launched job (parallel::init() finds
/// the others), and returns when all have ended well. Each is this program, executed anew: a
/// process with threads cannot be copied. Their output is this process's, each line with its rank
/// before it. They end when this process does. Any thread. Throws SpawnError; ValueError for a name
/// that is not registered and for fewer than one rank; EnvironmentError where spawn_entry() has not
/// been called, or processes cannot be started.
void spawn(int ranks, const std::string& name, const std::vector<std::string>& arguments = {});

}  // namespace bellows::parallel
