// Decides for all nodes of a job: who is in, when ranks are started, stopped and started anew, and
// how it ends. Sees states and writes a plan; knows neither a network nor a process.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bellows/core/clock.h"
#include "bellows/nodes/protocol.h"

namespace bellows::nodes {

struct Rules {
  int least = 1, most = 1;
  bool fixed = true;  // numbered by --node-rank
  int max_restarts = 0;
  std::string keeper;  // the node that has the store: in every generation; empty: any may be out
  Clock::Duration join{}, last_call{};
  Clock::Duration lost_after{};   // a node that has not written for so long is lost
  Clock::Duration stop_within{};  // so long may a node take to end its ranks
};

class Coordinator {
 public:
  explicit Coordinator(const Rules& rules);

  /// Looks at all nodes that ever came, in that order. Returns whether the plan is another now.
  /// Times are of the monotonic clock of this process; a pause of this process is not held against
  /// the others.
  bool step(const std::vector<NodeState>& states);
  const Plan& plan() const { return plan_; }
  /// Whether every node that is still heard from has left.
  bool all_left() const;

 private:
  using Time = Clock::Duration;
  struct Node {
    NodeState state;
    size_t order = 0;  // of coming
    Time heard{};
  };
  struct Fault {
    std::string node;
    int weight = 0;  // the heaviest is told as the first: lost 3, killed 2, else 1
    bool fatal = false;
  };

  void take(const std::vector<NodeState>& states);
  void gather();
  const Node* given_up() const;
  bool complete(const std::vector<const Node*>& all);
  void begin(const std::vector<const Node*>& chosen);
  void watch();
  void settle();
  void stop(const std::string& why);
  void restart_after_fault();
  void gather_anew(const std::string& why);
  void note_faults();
  void note_asks();
  void refuse_misfits();
  void end(int code, const std::string& text);
  void end_by_outcomes();
  std::string describe(const Fault& fault) const;
  std::string who_is_here(const std::vector<const Node*>& ready) const;
  std::vector<const Node*> ready() const;
  bool alive(const std::string& id) const;
  bool is_member(const std::string& id) const;
  std::ptrdiff_t members_alive() const;
  const Node& node(const std::string& id) const { return nodes_.at(id); }

  const Rules rules_;
  Plan plan_;
  std::map<std::string, Node> nodes_;
  std::vector<Fault> faults_;  // of this generation
  bool others_ = false;        // stopping, as the nodes are others now
  Time now_{}, looked_{};
  std::optional<Time> join_by_, call_by_, stop_by_;
};

}  // namespace bellows::nodes
