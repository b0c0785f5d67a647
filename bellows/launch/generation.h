// The ranks of a job from one start to their end: processes, groups, and what they leave behind.
#pragma once

#include <deque>
#include <set>
#include <string>
#include <vector>

#include "bellows/launch/launch.h"
#include "bellows/launch/log_folder.h"
#include "bellows/launch/master_socket.h"
#include "bellows/launch/nodes.h"
#include "bellows/launch/rank.h"

namespace bellows::launch {

/// What all generations of a job share. All of it outlives them.
struct Job {
  const Options& options;
  std::string program;  // as found
  std::string run_id;
  std::string secret;                  // of the agent channel
  std::string threads;                 // OMP_NUM_THREADS; empty: as it is
  unsigned long files = 0;             // soft limit of descriptors that ranks are given
  std::vector<std::vector<int>> cpus;  // each local rank's; empty: as the launcher
  const LogFolder& logs;
  const Guard& guard;
  const SignalQueue& signals;
};

class Generation {
 public:
  /// Starts all ranks, or ends those it has started and throws as start_child and MasterSocket do.
  Generation(const Job& job, Assignment node);

  std::deque<Rank>& ranks() { return ranks_; }
  const std::deque<Rank>& ranks() const { return ranks_; }
  bool any_running() const;
  /// Whether nothing is left: no rank, no process of their groups, none that has left them.
  bool gone() const;
  /// Takes note of what has ended since; returns the ranks among it.
  std::vector<Rank*> reap();
  /// SIGTERM, once, to each process that has left its rank's group and lost its parent since.
  void ask_strays();
  /// Sends it to everything that is left, except to the rank `spared`.
  void signal(int number, const Rank* spared = nullptr);

 private:
  Rank start_rank(int local);
  void forget_empty_groups();
  std::vector<pid_t> strays() const;

  const Job& job_;
  Assignment node_;
  std::deque<Rank> ranks_;
  std::set<pid_t> asked_;  // of the strays
};

}  // namespace bellows::launch
