// Several launchers, each as on a node of its own.
#pragma once

#include <arpa/inet.h>
#include <chrono>
#include <csignal>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cli/bellows_program.h"
#include "tests/support/process.h"

namespace bellows::testing {

using Words = std::vector<std::string>;

inline Words operator+(Words all, const Words& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// A port of 127.0.0.1 that was free just now. They differ within a process.
inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

/// Whether it came true in time.
inline bool wait_until(const std::function<bool()>& happened,
                       std::chrono::seconds limit = std::chrono::seconds(60)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!happened()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

inline size_t count_of(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

inline bool has(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}

/// A connection to the port of 127.0.0.1, or -1.
inline int connection(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  ::close(fd);
  return -1;
}

/// The nodes of one job, which meet at 127.0.0.1.
class Job {
 public:
  explicit Job(Words flags, int port = free_port()) : flags_(std::move(flags)), port_(port) {}

  /// `bellows launch`, the job's flags, `more`, `-- command`.
  Process& add(const Words& more, const Words& command,
               std::map<std::string, std::string> environment = {}) {
    environment.emplace("OMP_NUM_THREADS", "1");
    const Words words = prefix_ + Words{BELLOWS_PROGRAM, "launch"} + flags_ +
                        Words{"--rdzv-endpoint", address_ + ":" + std::to_string(port_)} + more +
                        Words{"--"} + command;
    nodes_.emplace_back(words, with_libtorch(std::move(environment)));
    return nodes_.back();
  }
  Process& add_shell(const Words& more, const std::string& script) {
    return add(more, {"sh", "-c", script});
  }
  /// Until the node that was added last has the store.
  bool store_is_there() {
    return wait_until([&] {
      const int fd = connection(port_);
      if (fd >= 0) ::close(fd);
      return fd >= 0 || !nodes_.back().running();
    });
  }
  /// Until the node knows that so many are there ("2 of 3 nodes").
  bool gathered(Process& node, const std::string& words) {
    wait_until([&] { return has(node.err_so_far(), "meet at") || !node.running(); });
    wait_until([&] {
      node.signal(SIGQUIT);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return has(node.err_so_far(), words) || !node.running();
    });
    return has(node.err_so_far(), words);
  }
  /// Before the words of the next node, and where it meets the others.
  void at(Words prefix, std::string address) {
    prefix_ = std::move(prefix);
    address_ = std::move(address);
  }
  int port() const { return port_; }
  Process& operator[](size_t node) { return *std::next(nodes_.begin(), static_cast<long>(node)); }
  size_t size() const { return nodes_.size(); }
  /// Until each of these nodes has shown `count` times the word.
  bool wait_for(const std::string& word, size_t count, std::vector<size_t> nodes = {}) {
    if (nodes.empty()) {
      for (size_t node = 0; node < size(); ++node) nodes.push_back(node);
    }
    return wait_until([&] {
      for (const size_t node : nodes) {
        if (count_of((*this)[node].out_so_far(), word) < count && (*this)[node].running())
          return false;
      }
      return true;
    });
  }
  std::vector<ProcessResult> wait(std::chrono::seconds limit = std::chrono::seconds(60)) {
    std::vector<ProcessResult> results;
    for (auto& node : nodes_) results.push_back(node.wait(limit));
    return results;
  }

 private:
  Words flags_, prefix_;
  std::string address_ = "127.0.0.1";
  int port_;
  std::list<Process> nodes_;
};

/// Nodes are lost after three seconds, and little else is waited for.
inline const std::string kShortTimes =
    "last_call_timeout=1,close_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3,"
    "heartbeat_timeout=1,join_timeout=40";

inline Words c10d(const std::string& nodes, Words more = {}) {
  return Words{"--nnodes",  nodes,  "--rdzv-backend", "c10d",
               "--rdzv-id", "job7", "--rdzv-conf",    kShortTimes} +
         more;
}

/// Ends with 75 after a moment, as training does.
inline const std::string kSaver =
    "trap 'sleep 0.1; echo saved; exit 75' TERM INT; echo ready $WORLD_SIZE; "
    "while :; do sleep 0.02; done";
inline const std::string kSleeper = "echo ready $WORLD_SIZE; exec sleep 100";

}  // namespace bellows::testing
