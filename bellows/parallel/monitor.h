// The thread of a process that looks after its collectives: it notices which have failed or take
// too long, calls the roll of all ranks over the store, and ends the groups that cannot go on, on
// every rank with the same ranks at fault. Internal.
//
// In the store: "roll" holds number, group and sequence number of the last call; "answers/N" where
// each rank stands; "verdict/N" what has been found, written once, by whoever is first; "acks/N"
// who has taken it. "left": answers of ranks that have closed a group.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bellows/parallel/quick_store.h"
#include "bellows/parallel/tracker.h"

namespace bellows::parallel {

class Monitor {
 public:
  /// `rank`: in the world; rank 0 serves the store. `store`: a connection of its own.
  Monitor(int64_t rank, int64_t world_size, std::shared_ptr<Store> store);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  void add(const std::shared_ptr<Tracker>& tracker);
  bool is_this_thread() const { return std::this_thread::get_id() == thread_.get_id(); }
  /// What a tracker calls when something has failed; it may outlive the monitor.
  std::function<void()> waker() const;
  /// Puts `text` where nothing is yet. What is there then; nothing where the store is silent.
  std::optional<std::string> agree(const std::string& key, const std::string& text,
                                   std::chrono::milliseconds limit);
  void forget(const std::string& key);
  /// Leaves word that this rank has closed the group: it may not be there to answer.
  void leave(const Tracker& tracker);

 private:
  struct Bell {
    std::mutex mutex;
    std::condition_variable rung;
    bool ringing = false, stop = false;
  };
  /// A roll call that has no verdict yet, as far as is known here.
  struct Call {
    std::string group;
    int64_t sequence = 0;
    std::string answered;  // what this rank has said last
    Clock::Duration since{};
  };

  void run();
  bool stopping() const;
  void pause(std::chrono::milliseconds time);
  std::vector<std::shared_ptr<Tracker>> trackers();
  std::chrono::milliseconds until_next();
  bool poll();
  void answer(int64_t number, Call& call);
  bool take(int64_t number);
  void settle(Tracker& tracker, const Tracker::Trouble& trouble);
  std::optional<int64_t> join(const Complaint& complaint, bool again);
  bool try_judge(const Tracker::Trouble& trouble, int64_t number, bool over, bool last);
  std::optional<std::string> read(const std::string& key);
  bool append(const std::string& key, const std::string& text);
  void end_all(const Verdict& verdict);
  void linger(int64_t number);

  const int64_t rank_, world_size_;
  QuickStore store_;
  std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  std::mutex mutex_;
  std::vector<std::weak_ptr<Tracker>> trackers_;
  // Of the thread alone.
  int64_t seen_ = 0;
  std::vector<Suspect> root_;  // of the first of the last verdicts
  Clock::Duration root_since_ = Clock::Duration::min() / 2;
  std::map<int64_t, Call> calls_;
  std::thread thread_;
};

}  // namespace bellows::parallel
