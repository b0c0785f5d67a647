#include "bellows/parallel/tracker.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "bellows/core/agent_client.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"

namespace bellows::parallel {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an error of unknown type";
  }
}

std::string seconds(Clock::Duration time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

Tracker::Tracker(std::string name, int64_t rank, int64_t world_size, std::vector<int64_t> members,
                 std::chrono::milliseconds timeout, std::function<void()> wake)
    : name_(std::move(name)),
      rank_(rank),
      world_size_(world_size),
      members_(std::move(members)),
      timeout_(timeout),
      wake_(std::move(wake)),
      moved_(monotonic_clock().now()) {}

int64_t Tracker::begun() const {
  const std::lock_guard lock(mutex_);
  return sequence_;
}

int64_t Tracker::begin(const Call& call, const std::shared_ptr<Work::State>& work) {
  int64_t key = 0, sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    if (closed_) throw ValueError("the group \"" + name_ + "\" has been closed");
    key = ++keys_;
    if (!call.point_to_point) {
      ++sequence_;
      calls_[static_cast<size_t>(sequence_) % kRemembered] = call.fingerprint;
    }
    sequence = sequence_;
    const auto now = monotonic_clock().now();
    pending_[key] = {.call = call,
                     .sequence = sequence,
                     .work = work,
                     .begun = now,
                     .due = now + call.timeout.value_or(timeout_)};
    last_ = call.fingerprint;
    moved_ = now;
  }
  agent::collective(call.operation, sequence, call.bucket);
  return key;
}

void Tracker::finished(int64_t key, const std::exception_ptr& error) {
  std::shared_ptr<Work::State> work;
  int64_t sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(key);
    if (found == pending_.end()) return;
    sequence = found->second.sequence;
    if (error) {
      found->second.failed = true;
    } else {
      moved_ = monotonic_clock().now();
      work = std::move(found->second.work);
      pending_.erase(found);
    }
  }
  if (work) {
    agent::collective_done(sequence);
    work->complete(nullptr);
    return;
  }
  log::debug(concat("rank ", rank_, ": collective #", sequence, " of group \"", name_,
                    "\" failed: ", text_of(error)));
  wake_();
}

void Tracker::close() {
  std::map<int64_t, Pending> pending;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    pending.swap(pending_);
  }
  for (const auto& [key, one] : pending) {
    one.work->complete(std::make_exception_ptr(
        RankError(concat("rank ", rank_, " of ", world_size_, ": ", one.call.operation,
                         " of group \"", name_, "\" was going on when the group was closed here"),
                  {})));
  }
}

Complaint Tracker::complaint_of(const Pending& pending) const {
  Complaint complaint{.group = name_,
                      .members = members_,
                      .sequence = pending.sequence,
                      .what = pending.call.fingerprint,
                      .timed_out = !pending.failed,
                      .names_all = pending.call.names_all,
                      .others = {}};
  if (pending.call.peer) complaint.others = {*pending.call.peer};
  return complaint;
}

std::optional<Tracker::Trouble> Tracker::trouble(Clock::Duration lead) const {
  const std::lock_guard lock(mutex_);
  const auto now = monotonic_clock().now();
  for (const auto& [key, one] : pending_) {
    if (one.failed) return Trouble{key, complaint_of(one), now};
    const auto patience = one.due - one.begun;
    if (now >= one.due - std::min(lead, patience / 4))
      return Trouble{key, complaint_of(one), one.due};
  }
  return std::nullopt;
}

bool Tracker::open(int64_t key) const {
  const std::lock_guard lock(mutex_);
  return pending_.contains(key);
}

std::optional<Clock::Duration> Tracker::next_due() const {
  const std::lock_guard lock(mutex_);
  std::optional<Clock::Duration> next;
  for (const auto& [key, one] : pending_) next = std::min(next.value_or(one.due), one.due);
  return next;
}

Answer Tracker::answer(int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  Answer answer{.rank = rank_, .group = name_, .begun = sequence_, .closed = closed_};
  answer.ago_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(monotonic_clock().now() - moved_)
          .count();
  answer.last = last_;
  const auto remembered = static_cast<int64_t>(kRemembered);
  if (sequence > 0 && sequence <= sequence_ && sequence > sequence_ - remembered) {
    answer.at = calls_[static_cast<size_t>(sequence) % kRemembered];
  }
  return answer;
}

bool Tracker::concerned(const Verdict& verdict) const {
  if (verdict.group == name_) return true;
  return std::ranges::any_of(verdict.suspects, [&](const Suspect& suspect) {
    return suspect.kind == Suspect::Kind::silent &&
           std::ranges::find(members_, suspect.rank) != members_.end();
  });
}

std::string Tracker::error_text(const Verdict& verdict) const {
  std::string text = concat("rank ", rank_, " of ", world_size_, ": ");
  if (pending_.empty()) {
    text += concat("the group \"", name_, "\" cannot go on, as collective #", verdict.sequence,
                   verdict.group == name_ ? "" : " of group \"" + verdict.group + "\"",
                   " failed on another rank: ");
  } else {
    const Pending& first = pending_.begin()->second;
    text += first.call.operation;
    if (!first.call.point_to_point) text += concat(" #", first.sequence);
    text += concat(" of group \"", name_, "\"");
    if (!first.call.detail.empty()) text += " (" + first.call.detail + ")";
    text += " failed after " + seconds(monotonic_clock().now() - first.begun) + ": ";
  }
  return text + describe(verdict, rank_);
}

void Tracker::end(const Verdict& verdict) {
  std::map<int64_t, Pending> pending;
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    if (error_ || closed_) return;
    std::vector<int64_t> ranks;
    for (const auto& suspect : verdict.suspects) ranks.push_back(suspect.rank);
    error = error_ = std::make_exception_ptr(RankError(error_text(verdict), ranks));
    pending.swap(pending_);
  }
  for (const auto& [key, one] : pending) one.work->complete(error);
}

bool Tracker::ended() const {
  const std::lock_guard lock(mutex_);
  return error_ != nullptr || closed_;
}

}  // namespace bellows::parallel
