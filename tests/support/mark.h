// Finding what a job has left behind.
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>

namespace bellows::testing {

/// A variable that a job and all that comes of it carry, by which they can be found.
class Mark {
 public:
  std::map<std::string, std::string> environment() const { return {{"BELLOWS_TEST_MARK", value_}}; }
  std::set<pid_t> processes() const {
    std::set<pid_t> found;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream file(entry.path() / "environ", std::ios::binary);
      std::ostringstream text;
      text << file.rdbuf();
      if (text.str().find("BELLOWS_TEST_MARK=" + value_) != std::string::npos) {
        found.insert(std::stoi(name));
      }
    }
    return found;
  }
  /// Waits until so many are there.
  void wait_for(size_t count) const {
    for (const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
         processes().size() < count && std::chrono::steady_clock::now() < limit;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  bool gone_within(std::chrono::milliseconds time) const {
    const auto limit = std::chrono::steady_clock::now() + time;
    while (!processes().empty()) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  ~Mark() {
    for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
  }

 private:
  static inline int count = 0;
  std::string value_ = std::to_string(::getpid()) + "-" + std::to_string(++count) + ".";
};

}  // namespace bellows::testing
