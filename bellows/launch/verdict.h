// What the ends of the ranks mean for the job.
#pragma once

#include <deque>
#include <vector>

#include "bellows/launch/rank.h"

namespace bellows::launch {

/// The rank that failed first, once `ended` were found dead together; null where none of them
/// failed. The kernel does not tell in which order they died: one that a signal ended is likely the
/// cause, and the others noticed. A rank that has reported an exception before all that is the
/// first even where it still runs: it may take longer to end than those that it lets down.
Rank* first_failure(std::deque<Rank>& ranks, const std::vector<Rank*>& ended);

/// The same where somebody had asked the job to end: a rank that neither saved nor was done, unless
/// signals ended some; those did not save, and the others may have noticed.
Rank* failure_while_ending(std::deque<Rank>& ranks);

/// Whether the rank saved on request.
bool saved(const Rank& rank);

/// The launcher's exit code; `first` is null where no rank failed, `stop_signal` 0 where nobody
/// asked the job to end.
int exit_code_of(const std::deque<Rank>& ranks, const Rank* first, int stop_signal);

}  // namespace bellows::launch
