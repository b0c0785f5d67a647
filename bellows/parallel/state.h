// What stands behind a Group, and what all groups of a world share. Internal.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bellows/parallel/group.h"
#include "bellows/parallel/init.h"
#include "bellows/parallel/monitor.h"
#include "bellows/parallel/transport.h"
#include "bellows/parallel/work.h"

namespace bellows::parallel {

/// Of the ranks that met at one init() or run_threads().
struct World {
  World(int64_t rank, int64_t size, std::shared_ptr<Store> store, InitOptions options,
        std::string backend, bool loopback, c10::Device device = c10::kCPU);
  const int64_t rank, size;
  const std::shared_ptr<Store> store;
  const InitOptions options;
  const std::string backend;
  const bool loopback;       // all ranks are on this machine
  const c10::Device device;  // with nccl: this rank's
  std::mutex mutex;
  std::set<std::string> names;  // ids of groups, alive or not
  Monitor monitor;
};

class Group::State {
 public:
  /// Of one process: the identity.
  explicit State(std::string name = "world");
  /// Of the world's ranks `members`, this one among them. `id`: its name with those of the groups
  /// it was made from, which is unique in the world. Blocks until all have come; RankError names
  /// those that have not.
  State(std::shared_ptr<World> world, std::string name, std::string id,
        std::vector<int64_t> members);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const std::string name, id, backend;
  const std::vector<int64_t> members;  // in the world
  const int64_t rank;                  // in this group
  const std::chrono::milliseconds timeout;
  std::shared_ptr<World> world;  // null for a group of one process

  int64_t size() const { return static_cast<int64_t>(members.size()); }
  bool closed() const;
  /// Throws ValueError once closed.
  std::shared_ptr<Transport> transport() const;

  using Start = std::function<void(Transport&, Transport::Done)>;
  /// Begins a collective. `tensors`: the value of its future; `finish` as of Work::State.
  Work begin(Call call, std::vector<at::Tensor> tensors, const Start& start,
             Work::State::Finish finish = {});
  using Post = std::function<std::shared_ptr<Transport::Message>(Transport&)>;
  /// Begins a message; `sender` is set by the work's wait().
  Work begin_message(Call call, std::vector<at::Tensor> tensors, const Post& post,
                     Work::State::Finish finish = {}, std::shared_ptr<int64_t> sender = {});
  void close();

 private:
  bool agreed(const Call& call, int64_t sequence);

  mutable std::mutex mutex_;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Tracker> tracker_;  // null where there is nobody to wait for
  std::shared_ptr<std::atomic<int64_t>> under_way_ = std::make_shared<std::atomic<int64_t>>(0);
  std::set<std::string> checked_;  // fingerprints that have been compared with the other ranks'
};

/// Runs `act` in a thread of its own. False where it has not ended in time: it goes on, and what it
/// holds lives as long. Its exception is rethrown.
bool run_bounded(std::function<void()> act, std::chrono::milliseconds limit);

/// Waits until each of `ranks` has set "<key>/<rank>"; returns those that have not in time.
std::vector<int64_t> wait_for(Store& store, const std::string& key,
                              const std::vector<int64_t>& ranks, std::chrono::milliseconds limit);

}  // namespace bellows::parallel
