// Loops of different length on different ranks: a rank that has run out of data goes on taking part
// in the collectives of those that have not. Source of the behaviour:
// torch/distributed/algorithms/join.py.
#pragma once

#include <functional>

#include "bellows/parallel/distributed_data_parallel.h"

namespace bellows::parallel {

struct JoinOptions {
  /// Whether gradients are divided by the number of all ranks, so that each sample counts the same,
  /// or by the number of those that still have data.
  bool divide_by_initial_world_size = true;
  /// Without it, only the body is run: for loops that are known to be even.
  bool enable = true;
  /// All ranks throw a RankError naming the first that ran out, in place of going on without it.
  /// Needed where the loop has collectives of its own, SyncBatchNorm for example.
  bool throw_on_early_termination = false;
};

/// Runs `body`, a loop of forward and backward passes through `ddp`, on every rank; passes may
/// differ in number. A rank whose body has returned adds zeros to the others' reductions until all
/// have returned; then all get the parameters and buffers of a rank that was among the last.
/// Optimizer state is each rank's own: the ranks that ended early have fewer steps in it. One small
/// all-reduce before each forward pass. What the body throws is rethrown at once.
void join(DdpCore& ddp, const std::function<void()>& body, const JoinOptions& options = {});

}  // namespace bellows::parallel
