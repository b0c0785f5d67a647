#include "bellows/launch/verdict.h"

#include <algorithm>
#include <csignal>
#include <sys/wait.h>

#include "bellows/core/exit_code.h"

namespace bellows::launch {
namespace {

bool killed(const Rank& rank) {
  return rank.status && WIFSIGNALED(*rank.status);
}

int weight(const Rank& rank) {
  if (killed(rank) && WTERMSIG(*rank.status) != SIGABRT) return 3;
  if (saved(rank)) return 1;
  return rank.failed() ? 2 : 0;
}

/// When it was in trouble: when it reported an exception, else when it ended.
Clock::Duration trouble(const Rank& rank) {
  return rank.agent.exception().empty() ? rank.ended : rank.agent.exception_time();
}

}  // namespace

bool saved(const Rank& rank) {
  return rank.code() == static_cast<int>(ExitCode::interrupted);
}

Rank* first_failure(std::deque<Rank>& ranks, const std::vector<Rank*>& ended) {
  if (ended.empty()) return nullptr;
  Rank* first = *std::max_element(ended.begin(), ended.end(), [](const Rank* a, const Rank* b) {
    return weight(*a) < weight(*b);
  });
  if (!first->failed()) return nullptr;
  for (auto& rank : ranks) {
    const bool in_trouble = !rank.agent.exception().empty() && (rank.running() || rank.failed());
    if (in_trouble && trouble(rank) < trouble(*first)) first = &rank;
  }
  return first;
}

Rank* failure_while_ending(std::deque<Rank>& ranks) {
  const bool by_signal =
      std::any_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.code() > 128; });
  if (by_signal) return nullptr;
  const auto found = std::find_if(ranks.begin(), ranks.end(),
                                  [](const Rank& rank) { return rank.failed() && !saved(rank); });
  return found == ranks.end() ? nullptr : &*found;
}

int exit_code_of(const std::deque<Rank>& ranks, const Rank* first, int stop_signal) {
  if (first != nullptr) return first->code();
  const auto all = [&](auto test) { return std::all_of(ranks.begin(), ranks.end(), test); };
  if (all([](const Rank& rank) { return rank.code() == 0; })) return 0;
  if (all([](const Rank& rank) { return rank.code() == 0 || saved(rank); })) {
    return static_cast<int>(ExitCode::interrupted);
  }
  return 128 + stop_signal;
}

}  // namespace bellows::launch
