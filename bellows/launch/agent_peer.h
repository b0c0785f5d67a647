// The launcher's side of the agent channel: what one rank has said of itself. Nothing a rank sends,
// garbage included, can make it wait or fail.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "bellows/core/clock.h"
#include "bellows/launch/descriptor.h"

namespace bellows::launch {

class AgentPeer {
 public:
  AgentPeer() = default;
  AgentPeer(Descriptor socket, int rank, std::string secret)
      : socket_(std::move(socket)), rank_(rank), secret_(std::move(secret)) {}

  int fd() const { return socket_.get(); }
  /// Reads what has come, at most 256 packets; returns how many.
  int drain();
  /// All that has come: for a rank that has ended, or before its state is shown. Of one that goes
  /// on sending, at most 100,000.
  void drain_all();
  /// One packet. It counts only after a hello with this launcher's version, rank and secret.
  void take(std::string_view packet);
  /// Asks the rank to save and end. Never waits.
  void ask_to_stop(std::chrono::seconds within) const;

  /// The text of the exception that the rank has reported last; empty for none.
  const std::string& exception() const { return exception_; }
  /// When it came.
  Clock::Duration exception_time() const { return exception_time_; }
  /// "step 12, forward, for 3.2 s; in all_reduce 57 of bucket 3 for 3.1 s", for people.
  std::string describe() const;

 private:
  struct Doing {
    std::string name;
    int64_t number = -1;  // step or sequence number
    int64_t bucket = -1;
    Clock::Duration since{};
  };

  Descriptor socket_;
  int rank_ = 0;
  std::string secret_;
  bool known_ = false;
  bool left_ = false;
  int64_t refused_ = 0, lost_ = 0, other_version_ = -1;
  Doing phase_, collective_;
  std::string exception_;
  Clock::Duration exception_time_{};
};

}  // namespace bellows::launch
