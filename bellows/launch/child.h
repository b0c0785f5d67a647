// Starting one rank.
#pragma once

#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

#include "bellows/launch/descriptor.h"
#include "bellows/launch/guard.h"
#include "bellows/launch/signals.h"

namespace bellows::launch {

/// A running rank: leader of a process group of its own.
struct Child {
  pid_t pid = -1;
  Descriptor out, err;  // what it writes; non-blocking
  Descriptor agent;     // the launcher's end of the agent channel; non-blocking
};

struct ChildRequest {
  std::vector<std::string> words;
  std::map<std::string, std::string> environment;
  std::string secret;  // of the agent channel
  int inherited = -1;  // a descriptor that it is given as well; its number is in the environment
  unsigned long files = 0;  // soft limit of descriptors it is given
  std::vector<int> cpus;    // that it may run on; empty: as the launcher
};

/// The path of the program `words[0]`, looked up in PATH. Throws ValueError with what is wrong.
std::string find_program(const std::string& name);

/// Forks and executes. The rank reads from /dev/null and gets SIGKILL when the launcher dies,
/// however early. Throws EnvironmentError where descriptors or processes have run out, ValueError
/// where the program cannot be executed.
Child start_child(const std::string& program, ChildRequest request, const Guard& guard,
                  const SignalQueue& signals);

}  // namespace bellows::launch
