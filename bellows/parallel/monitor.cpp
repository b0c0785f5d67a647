#include "bellows/parallel/monitor.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"

namespace bellows::parallel {
namespace {
using namespace std::chrono_literals;

// The sum of what follows a time-out must stay below a second.
constexpr auto kPoll = 200ms;      // how often the store is looked at
constexpr auto kFastPoll = 30ms;   // while a roll is called
constexpr auto kLead = 400ms;      // before its time-out a collective's roll is called
constexpr auto kPatience = 600ms;  // for answers
constexpr auto kAskLimit = 500ms;  // for one answer of the store
constexpr auto kLinger = 500ms;    // rank 0, for the others to have taken a verdict
constexpr auto kForgotten = 5s;    // a call without a verdict
// For so long after a verdict, whoever goes has gone because of it: the ranks at fault are the
// same.
constexpr auto kConsequences = 30s;
constexpr int kCalls = 3;  // where all answer and none is at fault

std::string roll_text(int64_t number, const Complaint& complaint) {
  return concat(number, "\t", complaint.sequence, "\t", complaint.group);
}

bool is_gone(const Suspect& suspect) {
  return suspect.kind == Suspect::Kind::silent || suspect.kind == Suspect::Kind::left;
}

struct Roll {
  int64_t number = 0, sequence = 0;
  std::string group;
};

Roll roll_from(const std::string& text) {
  Roll roll;
  std::istringstream input(text);
  input >> roll.number >> roll.sequence;
  input.get();
  std::getline(input, roll.group);
  return roll;
}

}  // namespace

Monitor::Monitor(int64_t rank, int64_t world_size, std::shared_ptr<Store> store)
    : rank_(rank), world_size_(world_size), store_(std::move(store)) {
  thread_ = std::thread([this] { run(); });
}

Monitor::~Monitor() {
  {
    const std::lock_guard lock(bell_->mutex);
    bell_->stop = true;
    bell_->rung.notify_all();
  }
  thread_.join();
}

void Monitor::add(const std::shared_ptr<Tracker>& tracker) {
  const std::lock_guard lock(mutex_);
  std::erase_if(trackers_, [](const auto& one) { return one.expired(); });
  trackers_.push_back(tracker);
}

std::function<void()> Monitor::waker() const {
  return [bell = bell_] {
    const std::lock_guard lock(bell->mutex);
    bell->ringing = true;
    bell->rung.notify_all();
  };
}

std::optional<std::string> Monitor::agree(const std::string& key, const std::string& text,
                                          std::chrono::milliseconds limit) {
  return store_.ask([=](Store& store) { return store.exchange(key, "", text); }, limit);
}

void Monitor::forget(const std::string& key) {
  store_.tell([=](Store& store) { store.remove(key); });
}

void Monitor::leave(const Tracker& tracker) {
  append("left", to_line(tracker.answer(0)));
}

bool Monitor::stopping() const {
  const std::lock_guard lock(bell_->mutex);
  return bell_->stop;
}

void Monitor::pause(std::chrono::milliseconds time) {
  std::unique_lock lock(bell_->mutex);
  bell_->rung.wait_for(lock, time, [&] { return bell_->stop; });
}

std::vector<std::shared_ptr<Tracker>> Monitor::trackers() {
  std::vector<std::shared_ptr<Tracker>> alive;
  const std::lock_guard lock(mutex_);
  for (const auto& one : trackers_) {
    if (auto tracker = one.lock()) alive.push_back(std::move(tracker));
  }
  return alive;
}

std::chrono::milliseconds Monitor::until_next() {
  // Many ranks ask one store.
  std::chrono::milliseconds wait = calls_.empty() ? kPoll + world_size_ * 1ms : kFastPoll;
  const auto now = monotonic_clock().now();
  for (const auto& tracker : trackers()) {
    const auto due = tracker->next_due();
    if (!due) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*due - kLead - now);
    wait = std::clamp(left, 1ms, wait);
  }
  return wait;
}

void Monitor::run() {
  while (!stopping()) {
    const auto wait = until_next();
    {
      std::unique_lock lock(bell_->mutex);
      bell_->rung.wait_for(lock, wait, [&] { return bell_->ringing || bell_->stop; });
      bell_->ringing = false;
      if (bell_->stop) return;
    }
    poll();
    for (const auto& tracker : trackers()) {
      if (const auto trouble = tracker->trouble(kLead)) settle(*tracker, *trouble);
    }
  }
}

/// Empty where the key is not there.
std::optional<std::string> Monitor::read(const std::string& key) {
  return store_.ask([key](Store& store) { return store.has(key) ? store.get(key) : std::string(); },
                    kAskLimit);
}

bool Monitor::append(const std::string& key, const std::string& text) {
  return store_
      .ask(
          [key, text](Store& store) {
            store.append(key, text);
            return std::string();
          },
          kAskLimit)
      .has_value();
}

/// Answers what is asked and takes what has been found. False where the store does not answer.
bool Monitor::poll() {
  const auto text =
      store_.ask([](Store& store) { return store.exchange("roll", "", "0\t0\t"); }, kAskLimit);
  if (!text) return false;
  const Roll roll = roll_from(*text);
  for (; seen_ < roll.number; ++seen_) {
    calls_[seen_ + 1] = {
        .group = {}, .sequence = 0, .answered = {}, .since = monotonic_clock().now()};
  }
  if (calls_.contains(roll.number)) {
    calls_[roll.number].group = roll.group;
    calls_[roll.number].sequence = roll.sequence;
  }
  for (auto& [number, call] : calls_) answer(number, call);
  std::vector<int64_t> open;
  for (const auto& [number, call] : calls_) open.push_back(number);
  for (const int64_t number : open) {
    if (take(number) || monotonic_clock().now() - calls_[number].since > kForgotten) {
      calls_.erase(number);
    }
  }
  return true;
}

/// Says where this rank stands, again where it has moved since.
void Monitor::answer(int64_t number, Call& call) {
  std::string lines = to_line({.rank = rank_}), key = lines;
  for (const auto& tracker : trackers()) {
    Answer one = tracker->answer(tracker->name() == call.group ? call.sequence : 0);
    lines += to_line(one);
    one.ago_ms = 0;
    key += to_line(one);
  }
  if (key == call.answered) return;
  if (append(concat("answers/", number), lines)) call.answered = key;
}

/// Whether there is a verdict; it is in force here then.
bool Monitor::take(int64_t number) {
  const auto text = read(concat("verdict/", number));
  if (!text || text->empty()) return false;
  append(concat("acks/", number), concat(rank_, "\n"));
  if (rank_ == 0) linger(number);
  try {
    const Verdict verdict = verdict_from(*text);
    if (!verdict.suspects.empty() && monotonic_clock().now() - root_since_ > kConsequences) {
      root_ = verdict.suspects;
      root_since_ = monotonic_clock().now();
    }
    end_all(verdict);
  } catch (const Error& error) {
    log::warn(error.what());
  }
  return true;
}

/// The store ends with this process, which may throw and go as soon as it knows: the others first.
void Monitor::linger(int64_t number) {
  const auto end = monotonic_clock().now() + kLinger;
  for (; monotonic_clock().now() < end && !stopping(); pause(20ms)) {
    const auto answers = read(concat("answers/", number)), acks = read(concat("acks/", number));
    if (!answers || !acks) return;
    std::set<int64_t> missing;
    for (const auto& one : answers_from(*answers)) missing.insert(one.rank);
    std::istringstream input(*acks);
    for (int64_t rank = 0; input >> rank;) missing.erase(rank);
    if (missing.empty()) return;
  }
}

void Monitor::end_all(const Verdict& verdict) {
  for (const auto& tracker : trackers()) {
    if (tracker->concerned(verdict)) tracker->end(verdict);
  }
}

/// The number of the call about this; a new one where none is open, or `again`.
std::optional<int64_t> Monitor::join(const Complaint& complaint, bool again) {
  while (!stopping()) {
    if (!poll()) return std::nullopt;
    if (!again) {
      for (const auto& [number, call] : calls_) {
        if (call.group == complaint.group && call.sequence == complaint.sequence) return number;
      }
    }
    const auto now = read("roll");
    if (!now) return std::nullopt;
    const Roll roll = roll_from(*now);
    if (roll.number != seen_) continue;
    const std::string mine = roll_text(seen_ + 1, complaint);
    const auto held = store_.ask(
        [now, mine](Store& store) { return store.exchange("roll", *now, mine); }, kAskLimit);
    if (!held) return std::nullopt;
    again = false;
    if (*held == mine) {
      calls_[++seen_] = {complaint.group, complaint.sequence, {}, monotonic_clock().now()};
      answer(seen_, calls_[seen_]);
      return seen_;
    }
  }
  return std::nullopt;
}

/// True where a verdict has been written, by whomever.
bool Monitor::try_judge(const Tracker::Trouble& trouble, int64_t number, bool over, bool last) {
  const auto lines = read(concat("answers/", number));
  const auto left = read("left");
  if (!lines || !left) return false;
  const auto answers = answers_from(*left + *lines);
  Verdict verdict = judge(trouble.complaint, answers);
  const bool all = complete(trouble.complaint, answers);
  // Who has left may be about to end with an exception, which is to be the first that is seen.
  const bool leaving = std::ranges::any_of(
      verdict.suspects, [](const Suspect& suspect) { return suspect.kind == Suspect::Kind::left; });
  const bool certain = all && !verdict.suspects.empty() && !leaving;
  if (!certain && !(over && (!all || leaving || last))) return false;
  if (const bool all_gone = std::ranges::all_of(verdict.suspects, is_gone);
      all_gone && monotonic_clock().now() - root_since_ < kConsequences) {
    verdict.suspects = root_;
  }
  return store_
      .ask([key = concat("verdict/", number),
            text = to_text(verdict)](Store& store) { return store.exchange(key, "", text); },
           kAskLimit)
      .has_value();
}

void Monitor::settle(Tracker& tracker, const Tracker::Trouble& trouble) {
  std::optional<int64_t> number;
  auto called = monotonic_clock().now();
  int calls = 0;
  const auto call = [&] {
    number = join(trouble.complaint, calls > 0);
    called = monotonic_clock().now();
    if (number) ++calls;
  };
  for (call(); tracker.open(trouble.key) && !stopping(); pause(kFastPoll)) {
    const auto now = monotonic_clock().now();
    const bool over = now - called >= kPatience;
    if (number && poll() && !tracker.open(trouble.key)) return;
    if (now < trouble.due) continue;
    if (number) {
      // Where all have answered and none is at fault, one of them may be about to go.
      if (calls_.contains(*number) && try_judge(trouble, *number, over, calls >= kCalls)) {
        poll();
        return;
      }
    }
    if (store_.gone() || store_.silent_for() >= kAskLimit) {
      end_all({trouble.complaint.group,
               trouble.complaint.sequence,
               trouble.complaint.what,
               {{.rank = 0, .kind = Suspect::Kind::silent}}});
      return;
    }
    if (!number || over) call();
  }
}

}  // namespace bellows::parallel
