#include "bellows/parallel/state.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/parallel/by_device.h"
#include "bellows/parallel/nccl.h"

namespace bellows::parallel {
namespace {
using namespace std::chrono_literals;

constexpr auto kCloseLimit = 1000ms;
constexpr auto kMeetingLimit = 500ms;  // past the time-out
// c10d's own time-out must not come before ours, which knows names.
constexpr auto kBehind = 5s;

int64_t position(const std::vector<int64_t>& members, int64_t rank) {
  return std::ranges::find(members, rank) - members.begin();
}

std::string rank_words(const std::vector<int64_t>& ranks) {
  std::vector<std::string> words;
  for (const int64_t rank : ranks) words.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(words);
}

struct Bounded {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::exception_ptr error;
};

/// What the thread that meets the others has found; it may outlive who asked.
struct Meeting {
  std::shared_ptr<Transport> transport;
  std::vector<int64_t> missing;
  std::string other;   // whom another rank takes for the members
  std::string failed;  // "", "store" or "connection"
};

struct Members {
  std::shared_ptr<Store> store;
  std::vector<int64_t> ranks;
  int64_t rank;
  std::chrono::milliseconds timeout;
  bool loopback;
  c10::Device device;  // the CPU: Gloo alone
};

std::unique_ptr<Transport> transport_of(const Members& members) {
  const int64_t rank = position(members.ranks, members.rank);
  const auto size = static_cast<int64_t>(members.ranks.size());
  const auto timeout = members.timeout + kBehind;
  auto host = gloo_transport(*members.store, rank, size, timeout, members.loopback);
  if (members.device.is_cpu()) return host;
  return transport_by_device(std::move(host), nccl_transport({*members.store->below("nccl"), rank,
                                                              size, members.device, timeout}));
}

void meet(const Members& members, Meeting& meeting) {
  try {
    const std::string mine =
        rank_words(members.ranks) + (members.device.is_cpu() ? "" : " over NCCL");
    const std::string held = members.store->exchange("ranks", "", mine);
    if (held != mine) {
      meeting.other = held;
      return;
    }
    members.store->set(concat("here/", members.rank), "1");
    meeting.missing = wait_for(*members.store, "here", members.ranks, members.timeout);
  } catch (const std::exception& error) {
    log::debug(error.what());
    meeting.failed = "store";
    return;
  }
  if (!meeting.missing.empty()) return;
  try {
    meeting.transport = transport_of(members);
  } catch (const std::exception& error) {
    log::debug(error.what());
    meeting.failed = "connection";
  }
}

std::shared_ptr<Transport> meet(const World& world, const std::string& name,
                                const std::vector<int64_t>& ranks) {
  const auto meeting = std::make_shared<Meeting>();
  const Members members{world.store->below("group/" + name),
                        ranks,
                        world.rank,
                        world.options.timeout,
                        world.loopback,
                        world.device};
  const bool ended =
      run_bounded([=] { meet(members, *meeting); }, world.options.timeout + kMeetingLimit);
  const auto fail = [&](const std::string& what, const std::vector<int64_t>& at_fault) {
    throw RankError(concat("rank ", world.rank, " of ", world.size, ": the group \"", name,
                           "\" could not be made: ", what),
                    at_fault);
  };
  const std::string time = concat(" within ", world.options.timeout.count() / 1000, " s");
  if (!ended) fail("rank 0, which serves the store, did not answer" + time, {0});
  if (meeting->failed == "store") fail("rank 0, which serves the store, has gone", {0});
  if (!meeting->failed.empty())
    fail("a connection between its ranks failed (BELLOWS_LOG=debug tells which)", {});
  if (!meeting->missing.empty()) {
    fail(rank_words(meeting->missing) + " did not come" + time, meeting->missing);
  }
  if (!meeting->other.empty()) {
    fail(concat("it is of ", rank_words(ranks), " here and of ", meeting->other, " elsewhere"), {});
  }
  return meeting->transport;
}

}  // namespace

bool run_bounded(std::function<void()> act, std::chrono::milliseconds limit) {
  const auto shared = std::make_shared<Bounded>();
  std::thread([shared, act = std::move(act)]() mutable {
    std::exception_ptr error;
    try {
      act();
    } catch (...) {
      error = std::current_exception();
    }
    act = {};
    const std::lock_guard lock(shared->mutex);
    shared->ended = true;
    shared->error = error;
    shared->changed.notify_all();
  }).detach();
  std::unique_lock lock(shared->mutex);
  if (!shared->changed.wait_for(lock, limit, [&] { return shared->ended; })) return false;
  if (shared->error) std::rethrow_exception(shared->error);
  return true;
}

std::vector<int64_t> wait_for(Store& store, const std::string& key,
                              const std::vector<int64_t>& ranks, std::chrono::milliseconds limit) {
  const auto end = monotonic_clock().now() + limit;
  std::vector<int64_t> missing = ranks;
  for (auto pause = 1ms;; pause = std::min(2 * pause, 50ms)) {
    std::erase_if(missing, [&](int64_t rank) { return store.has(concat(key, "/", rank)); });
    if (missing.empty() || monotonic_clock().now() >= end) return missing;
    std::this_thread::sleep_for(pause);
  }
}

World::World(int64_t rank, int64_t size, std::shared_ptr<Store> store, InitOptions options,
             std::string backend, bool loopback, c10::Device device)
    : rank(rank),
      size(size),
      store(std::move(store)),
      options(std::move(options)),
      backend(std::move(backend)),
      loopback(loopback),
      device(device),
      monitor(rank, size, this->store->again()->below("bellows")) {}

Group::State::State(std::string the_name)
    : name(std::move(the_name)),
      id(name),
      backend("none"),
      members{0},
      rank(0),
      timeout(InitOptions().timeout),
      transport_(alone_transport()) {}

Group::State::State(std::shared_ptr<World> the_world, std::string the_name, std::string the_id,
                    std::vector<int64_t> the_members)
    : name(std::move(the_name)),
      id(std::move(the_id)),
      backend(the_members.size() == 1 ? "none" : the_world->backend),
      members(std::move(the_members)),
      rank(position(members, the_world->rank)),
      timeout(the_world->options.timeout),
      world(std::move(the_world)) {
  if (members.size() == 1) {
    transport_ = alone_transport();
    return;
  }
  transport_ = meet(*world, id, members);
  tracker_ = std::make_shared<Tracker>(id, world->rank, world->size, members, timeout,
                                       world->monitor.waker());
  world->monitor.add(tracker_);
}

Group::State::~State() {
  close();
  // A callback of a work may let go of the last group, in the monitor's own thread.
  if (world && world->monitor.is_this_thread()) {
    std::thread([last = std::move(world)] {}).detach();
  }
}

bool Group::State::closed() const {
  const std::lock_guard lock(mutex_);
  return transport_ == nullptr;
}

std::shared_ptr<Transport> Group::State::transport() const {
  const std::lock_guard lock(mutex_);
  if (!transport_) throw ValueError("the group \"" + name + "\" has been closed");
  return transport_;
}

/// Whether the other ranks that have come so far called the same.
bool Group::State::agreed(const Call& call, int64_t sequence) {
  constexpr size_t kMost = 4096;  // shapes that never come again must not fill the store
  const bool is_new = checked_.size() < kMost && checked_.insert(call.fingerprint).second;
  if (!is_new && !world->options.check_calls) return true;
  const auto key = [&](int64_t number) { return concat("call/", id, "/", number); };
  const auto held = world->monitor.agree(key(sequence), call.fingerprint, timeout);
  // What all ranks have left behind them is of no use any more.
  constexpr int64_t kKept = 256;
  if (world->options.check_calls && rank == 0 && sequence > kKept) {
    world->monitor.forget(key(sequence - kKept));
  }
  return !held || *held == call.fingerprint;
}

Work Group::State::begin(Call call, std::vector<at::Tensor> tensors, const Start& start,
                         Work::State::Finish finish) {
  const auto transport = this->transport();
  Describe::apply(call);
  const auto work = std::make_shared<Work::State>(std::move(tensors), std::move(finish));
  if (!tracker_) {
    start(*transport, [work](const std::exception_ptr& error) { work->complete(error); });
    return Work(work);
  }
  const int64_t key = tracker_->begin(call, work);
  if (!agreed(call, tracker_->begun())) {
    tracker_->finished(key, std::make_exception_ptr(Error("another rank calls something else")));
    return Work(work);
  }
  if (!tracker_->open(key)) return Work(work);  // it has failed meanwhile
  ++*under_way_;
  try {
    start(*transport,
          [tracker = tracker_, under_way = under_way_, key](const std::exception_ptr& error) {
            --*under_way;
            tracker->finished(key, error);
          });
  } catch (...) {
    --*under_way_;
    tracker_->finished(key, std::current_exception());
  }
  return Work(work);
}

Work Group::State::begin_message(Call call, std::vector<at::Tensor> tensors, const Post& post,
                                 Work::State::Finish finish, std::shared_ptr<int64_t> sender) {
  const auto transport = this->transport();
  Describe::apply(call);
  call.point_to_point = true;
  const auto work = std::make_shared<Work::State>(std::move(tensors), std::move(finish));
  if (!tracker_) {
    post(*transport);
    return Work(work);
  }
  const int64_t key = tracker_->begin(call, work);
  try {
    const auto message = post(*transport);
    work->wait_by(
        [message, sender, key, tracker = tracker_] {
          try {
            const int64_t from = message->wait();
            if (sender) *sender = from;
            tracker->finished(key, nullptr);
          } catch (...) {
            tracker->finished(key, std::current_exception());
          }
        },
        [message] { message->abort(); });
  } catch (...) {
    tracker_->finished(key, std::current_exception());
  }
  return Work(work);
}

void Group::State::close() {
  std::shared_ptr<Transport> transport;
  {
    const std::lock_guard lock(mutex_);
    transport.swap(transport_);
  }
  if (!transport || !tracker_) return;
  const bool broken = tracker_->ended();
  tracker_->close();
  if (!broken) world->monitor.leave(*tracker_);
  if (*under_way_ == 0) {
    run_bounded([last = std::move(transport)]() mutable { last.reset(); }, kCloseLimit);
  } else {
    // c10d would wait for its own time-out: the process goes first.
    log::debug(concat("group \"", name, "\": closed with collectives under way"));
    run_bounded([transport] { transport->abort(); }, kCloseLimit);
    new std::shared_ptr<Transport>(std::move(transport));  // NOLINT: on purpose for good
  }
}

}  // namespace bellows::parallel
