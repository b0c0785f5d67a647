// what the launchers of the nodes of one job tell each other, over c10d's store. The
// contract is docs/node-protocol.md; both sides keep to this file. The node that has the store
// decides (coordinator.h); each node writes its own state and reads the plan.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::nodes {

inline constexpr int kProtocolVersion = 1;
/// Bytes of a report that travels to other nodes; longer ones are cut.
inline constexpr size_t kLongestReport = 32 << 10;

/// Keys of the store. The first belongs to whoever has the store, the others lie below the job's
/// name.
inline constexpr const char* kJobKey = "bellows/job";
std::string nodes_key(const std::string& job);  // the nodes' names, 16 digits each, as they came
std::string state_key(const std::string& job, const std::string& node);
std::string plan_key(const std::string& job);
std::string number_key(const std::string& job);  // the plan's, written after it
/// Names of nodes with a failed rank, in the order in which the store heard of it.
std::string failures_key(const std::string& job, int generation);

/// Who has the store, under kJobKey.
struct Job {
  int version = kProtocolVersion;
  std::string name;
  std::string host;
  int64_t pid = 0;
};

/// Of one node, written by it alone.
struct NodeState {
  enum class Stage { waiting, running, ended, left };

  std::string id;       // drawn: 16 hexadecimal digits
  std::string host;     // its name, for people
  int64_t pid = 0;      // of its launcher
  std::string address;  // for the other nodes
  int port = 0;         // held for rank 0's store while it waits
  int ranks = 1;        // to start
  int node_rank = 0;    // --node-rank
  int least = 1, most = 1, max_restarts = 0;
  bool fixed = true;  // --rdzv-backend static
  int64_t beat = 0;   // another one at each writing
  Stage stage = Stage::waiting;
  int generation = -1;  // that it runs or ran last
  // Of that generation:
  bool failed = false;       // a rank failed, before the node knew of any order to stop
  int rank = -1;             // which
  bool killed = false;       // by a signal
  std::string how;           // "exit code 7"
  int code = 0;              // the node's exit code, once ended or left
  std::string report;        // of the failure; why it left
  int signal = 0, asks = 0;  // what asked this node's launcher to end, and how often
  size_t arrival = 0;  // of its failure at the store, among those of the generation; not written
};

/// A node's place in a generation; the order of members is that of their group ranks.
struct Member {
  std::string id, host;
  int64_t pid = 0;
  int ranks = 1;
  bool operator==(const Member&) const = default;
};

/// What all are to do, written by the node that has the store alone.
struct Plan {
  enum class Stage { gathering, running, stopping, ended };

  int64_t number = 0;  // of this plan; a later one has a higher number
  Stage stage = Stage::gathering;
  int generation = -1;  // starts before the next one, less 1: of those running, their own number
  int restarts = 0;     // starts that failures have cost
  std::vector<Member> members;
  std::string master_address;
  int master_port = 0;
  int signal = 0, asks = 0;  // as in NodeState: what is to be passed on
  int code = 0;              // ended: everyone's exit code
  std::string text;          // why, in one line
  std::string node;          // whose failure it tells of, and its report
  std::string report;
  std::map<std::string, std::string> refused;  // node: why
  std::vector<std::string> lost;               // nodes that were not heard from
  bool operator==(const Plan&) const = default;
};

std::string encode(const Job& job);
std::string encode(const NodeState& state);
std::string encode(const Plan& plan);
/// Nothing for what is none: other types, numbers out of range, names that are too long.
std::optional<Job> decode_job(std::string_view text);
std::optional<NodeState> decode_state(std::string_view text);
std::optional<Plan> decode_plan(std::string_view text);

/// "node 1 (hostb, pid 42)".
std::string name_of(const Plan& plan, const std::string& id);
/// "hostb, pid 42".
std::string place_of(const std::string& host, int64_t pid);

}  // namespace bellows::nodes
