#include "bellows/nodes/coordinator.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <sstream>
#include <tuple>

#include "bellows/core/exit_code.h"
#include "bellows/core/text.h"

namespace bellows::nodes {
namespace {

using Stage = NodeState::Stage;
using namespace std::chrono_literals;

constexpr int kEnvironment = static_cast<int>(ExitCode::environment);
constexpr int kSaved = static_cast<int>(ExitCode::interrupted);

std::string seconds(Clock::Duration time) {
  std::ostringstream text;
  text << std::chrono::duration<double>(time).count() << " s";
  return text.str();
}

std::string place_of(const NodeState& state) {
  return bellows::nodes::place_of(state.host, state.pid);
}

std::string nodes(size_t count) {
  return concat(count, count == 1 ? " node" : " nodes");
}

}  // namespace

Coordinator::Coordinator(const Rules& rules) : rules_(rules) {
  looked_ = monotonic_clock().now();
  join_by_ = looked_ + rules_.join;
}

bool Coordinator::alive(const std::string& id) const {
  const bool lost = std::find(plan_.lost.begin(), plan_.lost.end(), id) != plan_.lost.end();
  return nodes_.contains(id) && !lost && node(id).state.stage != Stage::left;
}

bool Coordinator::is_member(const std::string& id) const {
  return std::any_of(plan_.members.begin(), plan_.members.end(),
                     [&](const Member& member) { return member.id == id; });
}

std::ptrdiff_t Coordinator::members_alive() const {
  return std::count_if(plan_.members.begin(), plan_.members.end(),
                       [&](const Member& member) { return alive(member.id); });
}

bool Coordinator::all_left() const {
  return std::none_of(nodes_.begin(), nodes_.end(),
                      [&](const auto& entry) { return alive(entry.first); });
}

void Coordinator::take(const std::vector<NodeState>& states) {
  constexpr Time kPause = 1s;  // this process did not run: the others could not be heard
  const Time gap = now_ - looked_;
  for (auto& [id, node] : nodes_) {
    if (gap > kPause) node.heard += gap;
  }
  looked_ = now_;
  for (const NodeState& state : states) {
    const auto [found, fresh] = nodes_.try_emplace(state.id);
    Node& node = found->second;
    if (fresh) node.order = nodes_.size();
    if (fresh || node.state.beat != state.beat) node.heard = now_;
    node.state = state;
  }
  for (const auto& [id, node] : nodes_) {
    if (alive(id) && now_ - node.heard > rules_.lost_after) plan_.lost.push_back(id);
  }
}

bool Coordinator::step(const std::vector<NodeState>& states) {
  now_ = monotonic_clock().now();
  const Plan before = plan_;
  take(states);
  switch (plan_.stage) {
    case Plan::Stage::gathering:
      gather();
      break;
    case Plan::Stage::running:
      watch();
      break;
    case Plan::Stage::stopping:
      settle();
      break;
    case Plan::Stage::ended:
      break;
  }
  if (plan_ == before && plan_.number > 0) return false;
  ++plan_.number;
  return true;
}

/// Nodes whose flags do not go with the others': told so, and not counted.
void Coordinator::refuse_misfits() {
  std::map<int, const Node*> taken;
  for (const Member& member : plan_.members) {
    if (alive(member.id)) taken[node(member.id).state.node_rank] = &node(member.id);
  }
  for (const Node* each : ready()) {
    const NodeState& state = each->state;
    std::string why;
    if (state.least != rules_.least || state.most != rules_.most || state.fixed != rules_.fixed ||
        state.max_restarts != rules_.max_restarts) {
      why = concat("its --nnodes ", state.least, ":", state.most, ", --max-restarts ",
                   state.max_restarts, " and --rdzv-backend ", state.fixed ? "static" : "c10d",
                   " differ from the job's, ", rules_.least, ":", rules_.most, ", ",
                   rules_.max_restarts, " and ", rules_.fixed ? "static" : "c10d",
                   "; start all nodes with the same flags");
    } else if (rules_.fixed) {
      const auto [found, fresh] = taken.try_emplace(state.node_rank, each);
      if (!fresh && found->second->state.id != state.id) {
        why = concat("--node-rank ", state.node_rank, " is taken by the node on ",
                     place_of(found->second->state), "; give each node a number of its own, 0 to ",
                     rules_.most - 1);
      }
    }
    if (!why.empty()) plan_.refused[state.id] = why;
  }
}

/// Nodes that may be started, in the order of their group ranks: the one with the store, former
/// members, others.
std::vector<const Coordinator::Node*> Coordinator::ready() const {
  std::vector<const Node*> all;
  for (const auto& [id, node] : nodes_) {
    if (alive(id) && node.state.stage == Stage::waiting && !plan_.refused.contains(id)) {
      all.push_back(&node);
    }
  }
  const auto key = [&](const Node* node) {
    const std::string& id = node->state.id;
    return std::tuple(id != rules_.keeper, !is_member(id), node->order);
  };
  std::sort(all.begin(), all.end(), [&](const Node* a, const Node* b) { return key(a) < key(b); });
  return all;
}

std::string Coordinator::who_is_here(const std::vector<const Node*>& ready) const {
  std::string names;
  std::set<int> lacking;
  for (int rank = 0; rank < rules_.most; ++rank) lacking.insert(rank);
  for (const Node* node : ready) {
    names += (names.empty() ? "" : "; ") + place_of(node->state);
    lacking.erase(node->state.node_rank);
  }
  const bool exact = rules_.least == rules_.most || rules_.fixed;
  std::string text =
      concat(ready.size(), " of ", exact ? "" : "at least ", exact ? rules_.most : rules_.least,
             " nodes ", ready.size() == 1 ? "is" : "are", " here: ", names);
  if (!rules_.fixed || lacking.empty() || lacking.size() > 16) return text;
  text += "; not here: node rank";
  for (const int rank : lacking) text += concat(" ", rank);
  return text;
}

/// A node of the job that ended for a reason of its own while others wait for it.
const Coordinator::Node* Coordinator::given_up() const {
  for (const auto& [id, node] : nodes_) {
    const bool gave_up = node.state.stage == Stage::left && node.state.code != 0;
    const bool counts = plan_.generation < 0 || is_member(id);
    if (gave_up && counts && node.state.asks == 0 && !plan_.refused.contains(id)) return &node;
  }
  return nullptr;
}

/// Whether these are enough to begin.
bool Coordinator::complete(const std::vector<const Node*>& all) {
  const auto most = static_cast<size_t>(rules_.most), least = static_cast<size_t>(rules_.least);
  const bool kept =
      rules_.keeper.empty() || (!all.empty() && all.front()->state.id == rules_.keeper);
  if (!kept) return false;      // it is about to come in itself
  if (plan_.generation >= 0) {  // whoever comes later makes another generation
    const auto back = std::count_if(all.begin(), all.end(),
                                    [&](const Node* node) { return is_member(node->state.id); });
    return all.size() >= least && back == members_alive();
  }
  if (all.size() == most) return true;
  if (all.size() < least || rules_.fixed) {
    call_by_.reset();
  } else if (!call_by_) {
    call_by_ = now_ + rules_.last_call;
  }
  return call_by_ && now_ >= *call_by_;
}

void Coordinator::gather() {
  refuse_misfits();
  note_asks();
  if (const Node* node = given_up()) {
    plan_.report = node->state.report;
    plan_.node = node->state.id;
    return end(node->state.code, concat("the node on ", place_of(node->state), " gave up"));
  }
  if (plan_.asks > 0) return end(128 + plan_.signal, "asked to end before all nodes were there");
  auto all = ready();
  all.resize(std::min(all.size(), static_cast<size_t>(rules_.most)));
  if (complete(all)) return begin(all);
  if (plan_.generation < 0) plan_.text = who_is_here(all);
  if (now_ >= *join_by_) {
    end(kEnvironment,
        concat("within ", seconds(rules_.join), " not all nodes came: ", who_is_here(all)));
  }
}

void Coordinator::begin(const std::vector<const Node*>& chosen) {
  auto nodes = chosen;
  if (rules_.fixed) {
    std::sort(nodes.begin(), nodes.end(),
              [](const Node* a, const Node* b) { return a->state.node_rank < b->state.node_rank; });
  }
  plan_.members.clear();
  for (const Node* node : nodes) {
    const NodeState& state = node->state;
    plan_.members.push_back({state.id, state.host, state.pid, state.ranks});
  }
  plan_.stage = Plan::Stage::running;
  ++plan_.generation;
  plan_.master_address = nodes.front()->state.address;
  plan_.master_port = nodes.front()->state.port;
  plan_.text.clear();
  plan_.node.clear();
  plan_.report.clear();
  faults_.clear();
  others_ = false;
  call_by_.reset();
}

void Coordinator::note_asks() {
  for (const auto& [id, node] : nodes_) {
    const bool counts =
        plan_.stage == Plan::Stage::gathering ? !plan_.refused.contains(id) : is_member(id);
    if (!counts || node.state.asks <= plan_.asks) continue;
    if (plan_.signal == 0) plan_.signal = node.state.signal;
    plan_.asks = node.state.asks;
  }
}

void Coordinator::note_faults() {
  for (const Member& member : plan_.members) {
    const bool known = std::any_of(faults_.begin(), faults_.end(),
                                   [&](const Fault& fault) { return fault.node == member.id; });
    if (known) continue;
    const NodeState& state = node(member.id).state;
    const bool gave_up = state.stage == Stage::left;
    if (!alive(member.id) && !gave_up) {
      faults_.push_back({member.id, 3, false});
    } else if (gave_up) {
      faults_.push_back({member.id, 3, true});
    } else if (state.failed && state.generation == plan_.generation) {
      faults_.push_back({member.id, state.killed ? 2 : 1, false});
    }
  }
}

void Coordinator::watch() {
  note_asks();
  note_faults();
  if (!faults_.empty()) return stop("");
  size_t ended = 0;
  for (const Member& member : plan_.members) {
    const NodeState& state = node(member.id).state;
    ended += state.stage == Stage::ended && state.generation == plan_.generation;
  }
  if (ended == plan_.members.size()) return end_by_outcomes();
  refuse_misfits();
  if (ended > 0 || plan_.asks > 0) return;
  if (plan_.members.size() < static_cast<size_t>(rules_.most)) {
    for (const Node* node : ready()) {
      if (is_member(node->state.id)) continue;  // has not begun yet
      others_ = true;
      return stop(concat("a node comes in: ", place_of(node->state)));
    }
  }
}

void Coordinator::stop(const std::string& why) {
  plan_.stage = Plan::Stage::stopping;
  plan_.text = why;
  stop_by_ = now_ + rules_.stop_within;
}

void Coordinator::settle() {
  note_asks();
  for (const Member& member : plan_.members) {
    const NodeState& state = node(member.id).state;
    const bool ended = state.stage == Stage::ended && state.generation == plan_.generation;
    if (ended || !alive(member.id)) continue;
    if (now_ < *stop_by_) return;
    plan_.lost.push_back(member.id);  // heard from, and does not end
  }
  note_faults();
  if (plan_.asks > 0) return end_by_outcomes();
  if (faults_.empty()) return gather_anew(plan_.text);
  restart_after_fault();
}

std::string Coordinator::describe(const Fault& fault) const {
  const NodeState& state = node(fault.node).state;
  const std::string name = name_of(plan_, fault.node);
  if (fault.fatal) return concat(name, " gave up");
  if (fault.weight == 3) {
    return concat(name, " was lost: nothing was heard from it for ", seconds(rules_.lost_after));
  }
  return concat(name, ": rank ", state.rank, " failed first: ", state.how);
}

void Coordinator::restart_after_fault() {
  const Fault first =
      *std::max_element(faults_.begin(), faults_.end(), [&](const Fault& a, const Fault& b) {
        if (a.weight != b.weight) return a.weight < b.weight;
        return node(a.node).state.arrival > node(b.node).state.arrival;
      });
  const NodeState& state = node(first.node).state;
  plan_.node = first.node;
  plan_.report = state.report;
  const std::string text = describe(first);
  const bool lost = first.weight == 3 && !first.fatal;
  const int code = lost || state.code == 0 ? kEnvironment : state.code;
  if (first.fatal || plan_.restarts >= rules_.max_restarts) return end(code, text);
  size_t left = ready().size();
  for (const Member& member : plan_.members) {
    left += alive(member.id) && node(member.id).state.stage == Stage::ended;
  }
  if (left < static_cast<size_t>(rules_.least)) {
    return end(code,
               concat(text, "; ", nodes(left), " left, --nnodes asks for at least ", rules_.least));
  }
  ++plan_.restarts;
  gather_anew(concat(text, "; all ranks are started anew (restart ", plan_.restarts, " of ",
                     rules_.max_restarts, ")"));
}

void Coordinator::gather_anew(const std::string& why) {
  plan_.stage = Plan::Stage::gathering;
  plan_.text = why;
  join_by_ = now_ + rules_.join;
}

void Coordinator::end(int code, const std::string& text) {
  plan_.stage = Plan::Stage::ended;
  plan_.code = std::clamp(code, 0, 255);
  plan_.text = text;
}

/// All have ended, and no rank failed unless it was asked to end.
void Coordinator::end_by_outcomes() {
  int code = 0;
  for (const Member& member : plan_.members) {
    const NodeState& state = node(member.id).state;
    if (!alive(member.id)) {
      plan_.node = member.id;
      return end(kEnvironment, describe({member.id, 3, false}));
    }
    if (state.failed) {
      plan_.node = member.id;
      plan_.report = state.report;
      return end(state.code, describe({member.id, 1, false}));
    }
    if (state.code == 0 || code >= 128) continue;
    code = state.code >= 128 || code == 0 ? state.code : code;
  }
  if (code == 128) code += plan_.signal;  // stopped before it was asked
  end(code, code > 128       ? "not every rank saved its state"
            : code == kSaved ? "all ranks saved"
                             : "");
}

}  // namespace bellows::nodes
