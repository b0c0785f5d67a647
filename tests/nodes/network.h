// Nodes in network namespaces of this machine, as if each were a machine of its own. Needs root and
// `ip`.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/nodes/job.h"

namespace bellows::testing {

/// Why there can be none here; empty where there can.
std::string no_namespaces();

/// Namespaces with an interface `eth0` each, address 10.77.0.1, .2, ….
class Namespaces {
 public:
  explicit Namespaces(int nodes);
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;
  /// Words before a command that is to run there.
  Words in(int node) const { return {"ip", "netns", "exec", name(node)}; }
  static std::string address(int node) { return "10.77.0." + std::to_string(node + 1); }

 protected:
  std::string name(int node) const { return prefix_ + std::to_string(node); }
  void configure(int node) const;

 private:
  int nodes_;
  std::string prefix_;
};

/// Joined by virtual Ethernet cables and a switch, a namespace more.
class Network : public Namespaces {
 public:
  explicit Network(int nodes);
  /// Sets the cable's end at the switch down: nobody is told.
  void cut(int node) const;

 private:
  int switch_;
};

/// Two nodes and a cable through which this process carries each packet.
class Cable : public Namespaces {
 public:
  Cable();
  ~Cable();
  /// So long does a packet take, either way.
  void delay(std::chrono::milliseconds time) { delay_ = time.count(); }
  /// Packets are kept until it goes on.
  void stall(bool yes) { stalled_ = yes; }

 private:
  void carry(int from, int to) const;
  int ends_[2] = {-1, -1};
  std::atomic<int64_t> delay_{0};
  std::atomic<bool> stalled_{false}, over_{false};
  std::thread there_, back_;
};

}  // namespace bellows::testing
