#include "bellows/parallel/init.h"

#include <csignal>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/parallel/nccl.h"
#include "bellows/parallel/state.h"

namespace bellows::parallel {
namespace {

std::string checked_backend(const std::string& wanted, const Place& place) {
  const auto known = backends();
  if (wanted == "auto") {
    const bool one_each = place.local_world_size <= cuda_device_count();
    return one_each && why_no_nccl().empty() ? "nccl" : "gloo";
  }
  for (const auto& name : known) {
    if (name == wanted) return name;
  }
  const std::string near = nearest(wanted, known);
  std::string text =
      concat("the back-end '", wanted, "' is not there; this program has ", join(known));
  if (!near.empty()) text += ", did you mean '" + near + "'?";
  if (wanted == "nccl") {
    text += concat("; NCCL cannot be used: ", why_no_nccl(),
                   ". Gloo takes tensors of CUDA devices too, through the CPU's memory");
  }
  throw ValueError(text);
}

void check(const InitOptions& options) {
  if (options.timeout.count() <= 0) {
    throw ValueError(concat("the time-out of a group: got ", options.timeout.count(),
                            " ms, expected more than 0"));
  }
}

std::vector<int64_t> all_ranks(int64_t count) {
  std::vector<int64_t> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Gloo writes to connections whose other end may have gone, which by default ends the process.
void survive_broken_connections() {
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) != 0) return;
  const bool is_default = (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
  if (is_default) ::signal(SIGPIPE, SIG_IGN);
}

Group world_group(int64_t rank, int64_t size, const std::shared_ptr<Store>& store,
                  const InitOptions& options, const std::string& backend, bool loopback,
                  c10::Device device = c10::kCPU) {
  survive_broken_connections();
  auto world = std::make_shared<World>(rank, size, store, options, backend, loopback, device);
  world->names.insert("world");
  return Group(std::make_shared<Group::State>(std::move(world), "world", "world", all_ranks(size)));
}

/// Rank 0's store, or the error that names rank 0.
std::shared_ptr<Store> reach_store(const Place& place, const InitOptions& options) {
  try {
    return network_store(place, options.timeout);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    log::debug(error.what());
    const std::string where =
        concat(place.master_addr, " port ", place.master_port, " (MASTER_ADDR, MASTER_PORT)");
    if (place.rank == 0) throw EnvironmentError("rank 0's store cannot be opened on " + where);
    throw RankError(
        concat("rank ", place.rank, " of ", place.world_size, ": rank 0 was not reached on ", where,
               " within ", options.timeout.count() / 1000, " s"),
        {0});
  }
}

/// By rank.
std::vector<std::string> texts_of_all(const Group& group, const std::string& text) {
  std::vector<std::string> texts;
  for (const Tree& one : group.all_gather_object(Tree(text))) texts.push_back(one.string());
  return texts;
}

/// The ranks of run_threads().
class Team {
 public:
  Team(int64_t ranks, const std::function<void(Group)>& body, const InitOptions& options)
      : ranks_(ranks), body_(body), options_(options), store_(memory_store(options.timeout)) {}

  void run() {
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([this, rank] { run_rank(rank); });
    }
    for (auto& thread : threads) thread.join();
    if (first_) std::rethrow_exception(first_);
  }

 private:
  void run_rank(int64_t rank) {
    try {
      const Group group = world_group(rank, ranks_, store_, options_, "gloo", true);
      enter(group);
      body_(group);
    } catch (...) {
      fail(std::current_exception());
    }
  }
  void enter(const Group& group) {
    const std::lock_guard lock(mutex_);
    if (first_) throw Error("another rank has failed");
    groups_.push_back(group.state());
  }
  /// The others would wait for this rank.
  void fail(const std::exception_ptr& error) {
    std::vector<std::shared_ptr<Group::State>> groups;
    {
      const std::lock_guard lock(mutex_);
      if (first_) return;
      first_ = error;
      for (const auto& group : groups_) {
        if (auto alive = group.lock()) groups.push_back(std::move(alive));
      }
    }
    for (const auto& group : groups) group->close();
  }

  const int64_t ranks_;
  const std::function<void(Group)>& body_;
  const InitOptions& options_;
  const std::shared_ptr<Store> store_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Group::State>> groups_;
  std::exception_ptr first_;
};

}  // namespace

std::vector<std::string> backends() {
  if (!why_no_nccl().empty()) return {"gloo"};
  return {"gloo", "nccl"};
}

Group init(const Place& place, const InitOptions& options) {
  check(options);
  const std::string backend = checked_backend(options.backend, place);
  if (place.world_size < 1 || place.rank < 0 || place.rank >= place.world_size) {
    throw ValueError(concat("a place among the ranks: got rank ", place.rank, " of ",
                            place.world_size,
                            ", expected a rank from 0 up to the number of ranks"));
  }
  if (place.world_size == 1) return Group();
  if (place.master_port < 1 || place.master_port > 65535) {
    throw ValueError(concat("a place among the ranks: got port ", place.master_port,
                            " for rank 0's store, expected 1 to 65535"));
  }
  const bool loopback = place.local_world_size == place.world_size;
  const auto store = reach_store(place, options);
  const auto join = [&](const std::shared_ptr<Store>& keys, c10::Device device) {
    return world_group(place.rank, place.world_size, keys, options, backend, loopback, device);
  };
  if (backend != "nccl") return join(store, c10::kCPU);
  check_devices(place, cuda_device_count());
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(place.local_rank));
  check_own_devices(
      texts_of_all(join(store->below("devices"), c10::kCPU), device_identity(device)));
  return join(store, device);
}

Group init(const InitOptions& options) {
  static std::mutex mutex;
  static std::optional<Group> world;
  const std::lock_guard lock(mutex);
  if (!world) world = init(place_from_environment(), options);
  return *world;
}

void run_threads(int64_t ranks, const std::function<void(Group group)>& body,
                 const InitOptions& options) {
  check(options);
  if (ranks < 1)
    throw ValueError(concat("run_threads: got ", ranks, " ranks, expected at least 1"));
  if (ranks == 1) return body(Group());
  if (options.backend != "auto" && checked_backend(options.backend, {}) != "gloo")
    throw ValueError("run_threads: threads meet over gloo alone");
  Team(ranks, body, options).run();
}

}  // namespace bellows::parallel
