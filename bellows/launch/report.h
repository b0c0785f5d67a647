// What the launcher says about ranks.
#pragma once

#include <deque>
#include <string>

#include "bellows/launch/rank.h"

namespace bellows::launch {

/// Why the other ranks were ended, and with what.
struct Ending {
  int first = -1;  // the rank that failed first, among all of the job
  double grace_seconds = 0;
};

/// One report of a failed generation: which rank was first and how, its exception, its last lines,
/// its files, and how the others ended. Whole lines.
std::string failure_report(const std::deque<Rank>& ranks, const Ending& ending);

/// One line a rank: what it is doing and for how long.
std::string state_report(const std::deque<Rank>& ranks);

/// "exit code 7", "SIGKILL (…its likely cause)".
std::string how_it_ended(const Rank& rank);

}  // namespace bellows::launch
