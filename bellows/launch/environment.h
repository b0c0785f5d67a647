// What a rank finds in its environment.
#pragma once

#include <map>
#include <string>

#include "bellows/launch/launch.h"
#include "bellows/launch/nodes.h"

namespace bellows::launch {

/// Cores that this process may use: its affinity, and the quota of its control group where that is
/// less (rounded up). At least 1.
int usable_cores();

/// The value of OMP_NUM_THREADS for each of `ranks`: cores / ranks, rounded down, at least 1. Empty
/// where the user has set it, and for a single rank, which may use all cores.
std::string threads_per_rank(int cores, int ranks);

struct Placement {
  const Assignment& node;
  int local_rank = 0;
  int master_port = 0;
  std::string run_id;
  std::string threads;  // OMP_NUM_THREADS; empty: as it is
};

/// This process's variables with torchrun's added. Throws ValueError where --virtual-local-rank has
/// fewer devices in CUDA_VISIBLE_DEVICES than ranks.
std::map<std::string, std::string> rank_environment(const Options& options,
                                                    const Placement& placement);

}  // namespace bellows::launch
