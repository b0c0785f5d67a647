#include "bellows/nodes/meeting.h"

#include <algorithm>
#include <chrono>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "bellows/core/clock.h"
#include "bellows/core/exit_code.h"
#include "bellows/core/text.h"
#include "bellows/launch/own_process.h"
#include "bellows/launch/signals.h"

namespace bellows::nodes {
namespace {

using namespace std::chrono_literals;
using Stage = NodeState::Stage;

constexpr auto kFirstReminder = 10s;
constexpr auto kNextReminder = 60s;

std::string line(const std::string& text) {
  return "bellows launch: " + text + "\n";
}

NodeState first_state(const launch::Options& options) {
  NodeState state;
  state.id = launch::random_hex(8);
  state.host = host_name();
  state.pid = ::getpid();
  state.ranks = options.ranks;
  state.node_rank = options.nodes.rank;
  state.least = options.nodes.least;
  state.most = options.nodes.most;
  state.fixed = options.nodes.fixed;
  state.max_restarts = options.max_restarts;
  return state;
}

}  // namespace

Clock::Duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Clock::Duration>(std::chrono::duration<double>(seconds));
}

Meeting::Meeting(const launch::Options& options)
    : options_(options),
      nodes_(options.nodes),
      lost_after_(from_seconds(nodes_.keep_alive * nodes_.attempts)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      state_(first_state(options)) {}

Meeting::~Meeting() {
  close(static_cast<int>(ExitCode::failed), "");
}

void Meeting::begin() {
  thread_ = std::thread([this] { work(); });
}

std::optional<launch::Order> Meeting::next() {
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  if (::read(wake_.get(), &count, sizeof(count)) < 0 && orders_.empty()) return std::nullopt;
  if (orders_.empty()) return std::nullopt;
  Order order = std::move(orders_.front());
  orders_.pop_front();
  const uint64_t more = 1;
  if (!orders_.empty() && ::write(wake_.get(), &more, sizeof(more)) < 0) return order;
  return order;
}

void Meeting::failed(const launch::Failure& failure) {
  const std::lock_guard lock(mutex_);
  state_.failed = true;
  state_.rank = failure.rank;
  state_.killed = failure.killed;
  state_.how = failure.how;
  state_.code = failure.code;
  news_ = true;
  changed_.notify_all();
}

void Meeting::ended(const launch::Outcome& outcome) {
  if (outcome.failure) failed(*outcome.failure);
  const std::lock_guard lock(mutex_);
  state_.stage = Stage::ended;
  state_.code = outcome.code;
  state_.report = outcome.report;
  news_ = true;
  changed_.notify_all();
}

void Meeting::asked(int signal, int times) {
  const std::lock_guard lock(mutex_);
  if (state_.asks == 0) state_.signal = signal;
  state_.asks = times;
  news_ = true;
  changed_.notify_all();
}

std::string Meeting::describe() const {
  const std::lock_guard lock(mutex_);
  return line(concat("node ", place_of(state_.host, state_.pid), " of job '", options_.run_id,
                     "' at ", endpoint(), ": ", doing_));
}

void Meeting::close(int code, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = true;
    state_.stage = Stage::left;
    state_.code = code;
    if (!why.empty()) state_.report = line(why);
    news_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Meeting::order(Order order) {
  const std::lock_guard lock(mutex_);
  orders_.push_back(std::move(order));
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof(one)) < 0) return;  // full: it is readable as it is
}

void Meeting::tell(const std::string& text) {
  order(Order::of(Order::Kind::tell, text));
}

void Meeting::finish(int code, const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(finished_, true)) return;
  }
  Order last = Order::of(Order::Kind::finish, text.empty() ? "" : line(text));
  last.code = code;
  order(std::move(last));
}

std::string Meeting::endpoint() const {
  const bool six = nodes_.host.find(':') != std::string::npos;
  return concat(six ? "[" : "", nodes_.host, six ? "]:" : ":", nodes_.port);
}

std::string Meeting::who_serves() const {
  return concat("the node that has the job's store, ", endpoint(), " (",
                place_of(job_.host, job_.pid), "),");
}

int Meeting::place_in(const Plan& plan) const {
  for (size_t i = 0; i < plan.members.size(); ++i) {
    if (plan.members[i].id == state_.id) return static_cast<int>(i);
  }
  return -1;
}

/// What has become of the generation before: the report of another node's failure is shown here
/// too.
void Meeting::say(const Plan& plan) {
  if (plan.text.empty()) return;
  tell(line(plan.text) + (plan.node == state_.id ? "" : plan.report));
}

launch::Assignment Meeting::assignment(const Plan& plan, size_t place) const {
  launch::Assignment node;
  node.generation = plan.generation;
  node.restarts = plan.restarts;
  node.node = static_cast<int>(place);
  node.nodes = static_cast<int>(plan.members.size());
  node.world_size = 0;
  for (size_t i = 0; i < plan.members.size(); ++i) {
    if (i < place) node.first_rank += plan.members[i].ranks;
    node.world_size += plan.members[i].ranks;
  }
  node.master_address = plan.master_address;
  node.master_port = plan.master_port;
  const std::string interface = interface_of(state_.address);
  if (!interface.empty()) node.variables["GLOO_SOCKET_IFNAME"] = interface;
  return node;
}

void Meeting::start(const Plan& plan, size_t place) {
  Order start = Order::of(Order::Kind::start);
  launch::Assignment& node = start.assignment = assignment(plan, place);
  {
    const std::lock_guard lock(mutex_);
    if (place == 0) node.master = master_;
    master_.reset();
    state_.stage = Stage::running;
    state_.generation = plan.generation;
    state_.failed = false;
    state_.code = 0;
    state_.report.clear();
    state_.how.clear();
    doing_ = concat("node ", place, " of ", node.nodes, ", ranks ", node.first_rank, " to ",
                    node.first_rank + options_.ranks - 1, " of ", node.world_size);
    start.text = line(concat("this is ", doing_));
  }
  order(std::move(start));
}

void Meeting::wait_anew() {
  auto master = std::make_shared<launch::MasterSocket>(state_.address, 0);
  const std::lock_guard lock(mutex_);
  state_.port = master->port();
  state_.stage = Stage::waiting;
  doing_ = "waiting for the other nodes";
  master_ = std::move(master);
  waiting_since_ = reminded_ = monotonic_clock().now();
}

/// Says whom it waits for, from time to time.
void Meeting::remind() {
  const bool full = plan_.stage == Plan::Stage::running;
  const std::string what =
      full ? concat("the job has its ", plan_.members.size(), " nodes, and this one is not needed")
           : plan_.text;
  {
    const std::lock_guard lock(mutex_);
    if (!what.empty()) doing_ = what;
  }
  const auto pause = reminded_ == waiting_since_ ? kFirstReminder : kNextReminder;
  if (monotonic_clock().now() - reminded_ >= pause) {
    reminded_ = monotonic_clock().now();
    tell(line(concat("waiting for ", static_cast<int>(seconds_since(waiting_since_)), " s at ",
                     endpoint(), ": ", what)));
  }
  if (full && monotonic_clock().now() - waiting_since_ >= from_seconds(nodes_.join)) {
    finish(static_cast<int>(ExitCode::environment),
           concat(what, "; it waited ", nodes_.join, " s (--rdzv-conf join_timeout)"));
  }
}

/// Whether this node is out of the job.
bool Meeting::is_out(const Plan& plan) {
  if (const auto why = plan.refused.find(state_.id); why != plan.refused.end()) {
    finish(static_cast<int>(ExitCode::usage),
           concat("this node is not taken into job '", options_.run_id, "': ", why->second));
    return true;
  }
  if (std::find(plan.lost.begin(), plan.lost.end(), state_.id) == plan.lost.end()) return false;
  finish(static_cast<int>(ExitCode::environment),
         "this node was taken for lost, as it was not heard from for too long; the others go on "
         "without it");
  return true;
}

/// Of the plan and what this node last did follows what it does next.
void Meeting::obey(const Plan& plan) {
  if (is_out(plan)) return;
  const bool fresh = plan.number != plan_.number;
  plan_ = plan;
  const int place = place_in(plan);
  const NodeState state = own_state();
  const bool waiting = state.stage == Stage::waiting;
  switch (plan.stage) {
    case Plan::Stage::gathering:
      if (waiting) remind();
      if (state.stage != Stage::ended) break;
      say(plan);
      wait_anew();
      break;
    case Plan::Stage::running:
      if (waiting && place >= 0) start(plan, static_cast<size_t>(place));
      if (waiting && place < 0) remind();
      break;
    case Plan::Stage::stopping:
      if (waiting && place >= 0 && state.generation < plan.generation) skip(plan.generation);
      if (fresh && state.stage == Stage::running) order(Order::of(Order::Kind::stop));
      break;
    case Plan::Stage::ended:
      if (fresh) say(plan);
      const bool outside = place < 0 && !plan.members.empty();
      finish(plan.code, outside ? "the job has ended without this node" : "");
      break;
  }
  pass_on_requests(plan, state, place >= 0);
}

/// A generation that was stopped before this node had begun it.
void Meeting::skip(int generation) {
  const std::lock_guard lock(mutex_);
  state_.stage = Stage::ended;
  state_.generation = generation;
}

void Meeting::pass_on_requests(const Plan& plan, const NodeState& state, bool member) {
  if (plan.asks > obeyed_asks_) {
    obeyed_asks_ = plan.asks;
    Order ask = Order::of(Order::Kind::ask);
    ask.signal = plan.signal;
    ask.times = plan.asks;
    order(std::move(ask));
  }
  if (state.asks > 0 && !member && plan.stage != Plan::Stage::gathering) {
    finish(128 + state.signal, concat("ended by ", launch::signal_name(state.signal)));
  }
}

NodeState Meeting::own_state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace bellows::nodes
