// The thread of a Meeting: it finds the store, and then writes and reads, again and again.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <sstream>
#include <utility>

#include "bellows/core/clock.h"
#include "bellows/core/error.h"
#include "bellows/core/exit_code.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/nodes/meeting.h"

namespace bellows::nodes {

namespace {

using namespace std::chrono_literals;
using Milliseconds = std::chrono::milliseconds;

constexpr auto kTick = 100ms;    // between two looks at the plan
constexpr auto kOwnTick = 50ms;  // of the node that makes it
constexpr auto kRetry = 200ms;   // between two attempts to connect
constexpr size_t kIdLength = 16;
constexpr size_t kMostNodes = 1 << 16;  // that ever came

Milliseconds milliseconds(double seconds) {
  return std::chrono::ceil<Milliseconds>(std::chrono::duration<double>(seconds));
}

/// Connects at its first call, which is made by a thread that nobody waits for.
class LazyStore : public parallel::Store {
 public:
  LazyStore(std::string host, int port, Milliseconds timeout)
      : host_(std::move(host)), port_(port), timeout_(timeout) {}
  void set(const std::string& key, const std::string& value) override { store().set(key, value); }
  std::string get(const std::string& key) override { return store().get(key); }
  std::vector<std::string> get_all(const std::vector<std::string>& keys) override {
    return store().get_all(keys);
  }
  bool has(const std::string& key) override { return store().has(key); }
  void append(const std::string& key, const std::string& value) override {
    store().append(key, value);
  }
  void remove(const std::string& key) override { store().remove(key); }
  std::string exchange(const std::string& key, const std::string& expected,
                       const std::string& value) override {
    return store().exchange(key, expected, value);
  }
  bool served() const override { return !store_ || store_->served(); }
  std::shared_ptr<Store> below(const std::string& prefix) const override {
    return std::make_shared<LazyStore>(*this)->store().below(prefix);
  }
  std::shared_ptr<Store> again() const override {
    return std::make_shared<LazyStore>(host_, port_, timeout_);
  }

 private:
  Store& store() {
    if (!store_) store_ = parallel::connect_store(host_, port_, timeout_);
    return *store_;
  }
  std::string host_;
  int port_;
  Milliseconds timeout_;
  std::shared_ptr<Store> store_;
};

/// Names of nodes, one a line; others are passed over.
std::vector<std::string> ids_of(const std::string& lines) {
  std::vector<std::string> ids;
  std::set<std::string> seen;
  std::istringstream input(lines);
  for (std::string id; std::getline(input, id) && ids.size() < kMostNodes;) {
    const bool name =
        id.size() == kIdLength && id.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (name && seen.insert(id).second) ids.push_back(id);
  }
  return ids;
}

std::string get_if_there(parallel::Store& store, const std::string& key) {
  return store.has(key) ? store.get(key) : "";
}

/// All nodes that ever came, in that order.
std::vector<NodeState> states_of(parallel::Store& store, const std::string& job, int generation) {
  std::vector<std::string> keys;
  for (const auto& id : ids_of(get_if_there(store, nodes_key(job)))) {
    keys.push_back(state_key(job, id));
  }
  if (keys.empty()) return {};
  const auto failures = ids_of(get_if_there(store, failures_key(job, generation)));
  std::vector<NodeState> states;
  for (const auto& text : store.get_all(keys)) {
    auto state = decode_state(text);
    if (!state) continue;
    const auto at = std::find(failures.begin(), failures.end(), state->id);
    state->arrival = static_cast<size_t>(at - failures.begin());
    states.push_back(std::move(*state));
  }
  return states;
}

}  // namespace

void Meeting::work() {
  try {
    connect();
    if (!store_) return;
    join();
    while (exchange()) pause(coordinator_ ? kOwnTick : kTick);
  } catch (const std::exception& error) {
    finish(static_cast<int>(exit_code(error)), error.what());
  }
}

/// Waits for news, at most that long. False where this node is to end before it has joined.
bool Meeting::pause(Milliseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [&] { return news_; });
  news_ = false;
  return !closing_ && state_.asks == 0;
}

bool Meeting::try_to_serve() {
  const bool must = nodes_.has_store.value_or(nodes_.fixed && nodes_.rank == 0);
  if (!must && (nodes_.fixed || nodes_.has_store)) return false;
  int code = 0;
  auto listener = listen_at(nodes_.host, nodes_.port, nodes_.has_store.value_or(false), code);
  if (!listener) {
    if (!must) return false;
    throw EnvironmentError(concat(
        "this node is to have the job's store and cannot listen at ", endpoint(), ": ",
        code == 0 ? "the name is not known" : std::strerror(code), "; ",
        code == EADDRINUSE ? "another program has the port: name another one on all nodes"
                           : "name an address of node 0 on all nodes (--master-addr), and give "
                             "each its own --node-rank"));
  }
  const bool everywhere = listener->address.empty();
  state_.address = everywhere ? host_name() : listener->address;
  if (!nodes_.local_address.empty()) state_.address = nodes_.local_address;
  const std::string& host = everywhere ? nodes_.host : listener->address;
  auto store = parallel::serve_store(listener->socket.release(), everywhere ? "127.0.0.1" : host,
                                     nodes_.port, milliseconds(nodes_.call));
  job_ = {kProtocolVersion, options_.run_id, state_.host, state_.pid};
  store->set(kJobKey, encode(job_));
  Rules rules;
  rules.least = nodes_.least;
  rules.most = nodes_.most;
  rules.fixed = nodes_.fixed;
  rules.max_restarts = options_.max_restarts;
  rules.keeper = state_.id;
  rules.join = from_seconds(nodes_.join);
  rules.last_call = from_seconds(nodes_.last_call);
  rules.lost_after = lost_after_;
  rules.stop_within = options_.shutdown_timeout + from_seconds(nodes_.close);
  coordinator_ = std::make_shared<Coordinator>(rules);
  store_ = std::make_unique<parallel::QuickStore>(std::move(store));
  return true;
}

bool Meeting::try_to_reach(std::string& why) {
  const auto address = reach(nodes_.host, nodes_.port, why);
  if (!address) return false;
  state_.address = nodes_.local_address.empty() ? *address : nodes_.local_address;
  store_ = std::make_unique<parallel::QuickStore>(
      std::make_shared<LazyStore>(nodes_.host, nodes_.port, milliseconds(nodes_.call)));
  return true;
}

void Meeting::connect() {
  const Time deadline = monotonic_clock().now() + from_seconds(nodes_.join);
  tell(concat("bellows launch: job '", options_.run_id, "': ", nodes_.least,
              nodes_.least < nodes_.most ? concat(" to ", nodes_.most) : "", " nodes meet at ",
              endpoint(), "\n"));
  std::string why;
  while (!try_to_serve() && !try_to_reach(why)) {
    if (monotonic_clock().now() >= deadline) {
      throw EnvironmentError(concat(
          "the node that has the job's store was not reached at ", endpoint(), " within ",
          nodes_.join, " s (--rdzv-conf join_timeout): ", why,
          "; is it started, is the address its own, and is the port open between the machines?"));
    }
    {
      const std::lock_guard lock(mutex_);
      doing_ = concat("not connected yet: ", why);
    }
    if (!pause(kRetry)) {
      const NodeState state = own_state();
      if (state.asks > 0) finish(128 + state.signal, "asked to end before the nodes met");
      return;
    }
  }
  if (!coordinator_) wait_for_job(deadline);
}

/// The one who serves has said which job it is.
void Meeting::wait_for_job(Time deadline) {
  const Time limit = std::min(deadline, monotonic_clock().now() + std::max(lost_after_, Time(5s)));
  const std::string strange = concat("what listens at ", endpoint(),
                                     " is not the store of a job of bellows launch; name another "
                                     "port on all nodes");
  for (;;) {
    const auto text =
        store_->ask([](parallel::Store& store) { return get_if_there(store, kJobKey); },
                    milliseconds(nodes_.call));
    if (text && !text->empty()) {
      const auto job = decode_job(*text);
      if (!job) throw EnvironmentError(strange);
      job_ = *job;
      break;
    }
    if (store_->gone() || monotonic_clock().now() >= limit) throw EnvironmentError(strange);
    if (!pause(kRetry)) break;
  }
  if (job_.version != kProtocolVersion) {
    throw EnvironmentError(concat(who_serves(), " speaks version ", job_.version,
                                  " of the nodes' protocol, this one version ", kProtocolVersion,
                                  "; install the same Bellows on all nodes"));
  }
  if (job_.name != options_.run_id) {
    throw ValueError(concat(who_serves(), " is of job '", job_.name, "', this node of job '",
                            options_.run_id,
                            "'; give all nodes the same --rdzv-id, and each job its own endpoint"));
  }
}

void Meeting::join() {
  wait_anew();
  const std::string job = options_.run_id, id = state_.id, text = encode(own_state());
  const auto joined = store_->ask(
      [job, id, text](parallel::Store& store) {
        store.set(state_key(job, id), text);
        store.append(nodes_key(job), id + "\n");
        return std::string("yes");
      },
      milliseconds(nodes_.call) + std::chrono::duration_cast<Milliseconds>(lost_after_));
  answered_ = monotonic_clock().now();
  if (!joined) throw EnvironmentError(who_serves() + " does not answer");
}

bool Meeting::exchange() {
  NodeState state;
  bool closing = false;
  {
    const std::lock_guard lock(mutex_);
    ++state_.beat;
    state = state_;
    closing = closing_;
  }
  const bool tell_failure = state.failed && failure_told_ < state.generation;
  auto coordinator = coordinator_;
  const std::string job = options_.run_id;
  const int generation = plan_.generation;
  const std::string known = std::to_string(plan_.number);
  const auto text = store_->ask(
      [=](parallel::Store& store) {
        if (tell_failure) store.append(failures_key(job, state.generation), state.id + "\n");
        store.set(state_key(job, state.id), encode(state));
        if (coordinator) {
          const bool fresh = coordinator->step(states_of(store, job, generation));
          const std::string plan = encode(coordinator->plan());
          if (fresh) {
            store.set(plan_key(job), plan);
            store.set(number_key(job), std::to_string(coordinator->plan().number));
          }
          return (coordinator->all_left() ? "y" : "n") + plan;
        }
        const std::string number = get_if_there(store, number_key(job));
        if (number.empty() || number == known) return std::string("n");
        return "n" + store.get(plan_key(job));
      },
      milliseconds(nodes_.call));
  if (!text) {
    no_answer();
    return !store_->gone() && !closing;
  }
  answered_ = monotonic_clock().now();
  if (tell_failure) failure_told_ = state.generation;
  if (!closing) {
    follow(text->substr(1));
    return true;
  }
  if (!coordinator || text->front() == 'y') return false;
  if (!left_at_) left_at_ = monotonic_clock().now();
  return monotonic_clock().now() - *left_at_ < from_seconds(nodes_.close);
}

/// A plan, or nothing where it is as it was.
void Meeting::follow(const std::string& text) {
  const auto plan = text.empty() ? std::optional(plan_) : decode_plan(text);
  if (!plan || plan->number == 0) return;  // none yet, or none
  try {
    obey(*plan);
  } catch (const std::exception& error) {
    finish(static_cast<int>(exit_code(error)), error.what());
  }
}

void Meeting::no_answer() {
  constexpr int kLost = static_cast<int>(ExitCode::environment);
  if (store_->gone()) {
    finish(kLost, who_serves() + " is gone: its connection has ended; this node's ranks are ended");
  } else if (monotonic_clock().now() - answered_ > lost_after_) {
    finish(kLost, concat(who_serves(), " has not answered for ",
                         std::chrono::duration<double>(lost_after_).count(),
                         " s (--rdzv-conf keep_alive_interval × keep_alive_max_attempt); this "
                         "node's ranks are ended"));
  }
}

}  // namespace bellows::nodes
