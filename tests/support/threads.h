// How many threads this process has, by the kernel's count.
#pragma once

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

namespace bellows::testing {

inline int threads_of_process() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Threads:")) return std::stoi(line.substr(8));
  }
  return -1;
}

/// The count once it is `expected`, or after five seconds. A thread that was joined is still
/// counted for a moment, until the kernel has put it away: a bare count right after a join, also
/// one taken for comparison, is now and then one too high.
inline int threads_settled(int expected) {
  int count = threads_of_process();
  for (int wait = 0; wait < 5000 && count != expected; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    count = threads_of_process();
  }
  return count;
}

}  // namespace bellows::testing
