// The collectives of one group in this process: which are going on, which were, and what ended the
// group. Internal; any thread.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bellows/core/clock.h"
#include "bellows/parallel/call.h"
#include "bellows/parallel/verdict.h"
#include "bellows/parallel/work.h"

namespace bellows::parallel {

class Tracker {
 public:
  /// `rank` and `members`: in the world.
  Tracker(std::string name, int64_t rank, int64_t world_size, std::vector<int64_t> members,
          std::chrono::milliseconds timeout, std::function<void()> wake);

  const std::string& name() const { return name_; }
  const std::vector<int64_t>& members() const { return members_; }
  /// The next one's number would be one more.
  int64_t begun() const;

  /// Registers a collective and returns its key for `finished`. Throws what has ended the group.
  int64_t begin(const Call& call, const std::shared_ptr<Work::State>& work);
  /// It has ended. With an error it goes on for its caller until the ranks at fault are known.
  void finished(int64_t key, const std::exception_ptr& error);
  /// The group has been closed here: what goes on ends with an error.
  void close();

  /// For the monitor: the first collective that has failed, or will within `lead`.
  struct Trouble {
    int64_t key = 0;
    Complaint complaint;
    Clock::Duration due{};  // not to be settled before
  };
  std::optional<Trouble> trouble(Clock::Duration lead) const;
  /// Whether that one still waits for a verdict.
  bool open(int64_t key) const;
  /// When the next one is due; nothing where none goes on.
  std::optional<Clock::Duration> next_due() const;
  /// Where this rank stands, seen from the collective of that number.
  Answer answer(int64_t sequence) const;
  /// Whether the verdict ends this group.
  bool concerned(const Verdict& verdict) const;
  /// Ends the group with a RankError, unless it has ended.
  void end(const Verdict& verdict);
  bool ended() const;

 private:
  struct Pending {
    Call call;
    int64_t sequence = 0;
    std::shared_ptr<Work::State> work;
    Clock::Duration begun{}, due{};
    bool failed = false;
  };
  std::string error_text(const Verdict& verdict) const;
  Complaint complaint_of(const Pending& pending) const;

  static constexpr size_t kRemembered = 64;

  const std::string name_;
  const int64_t rank_, world_size_;
  const std::vector<int64_t> members_;
  const std::chrono::milliseconds timeout_;
  const std::function<void()> wake_;

  mutable std::mutex mutex_;
  int64_t sequence_ = 0, keys_ = 0;
  std::map<int64_t, Pending> pending_;
  std::array<std::string, kRemembered> calls_;  // the last fingerprints, by number
  std::string last_;                            // also of messages between two
  Clock::Duration moved_{};                     // when something began or ended last
  bool closed_ = false;
  std::exception_ptr error_;
};

}  // namespace bellows::parallel
