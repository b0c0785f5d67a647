// A group as LibTorch's own code takes it (c10d::Reducer). Internal, heavy.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "bellows/parallel/call.h"
#include "bellows/parallel/group.h"

namespace bellows::parallel {

/// Its collectives are the group's: counted, watched, and failing with RankError. They are
/// broadcast, allreduce, allgather, _allgather_base, _reduce_scatter_base and barrier. Keeps the
/// group alive. Also of a group of one. Under a `Describe` of the calling thread errors say what
/// the collective is about:
///
///   const Describe what("fc.weight, fc.bias", bucket_index);
///   return group.async().all_reduce(bucket.getBuffer()).future();
c10::intrusive_ptr<c10d::ProcessGroup> process_group(const Group& group);

/// A Work as LibTorch's own code takes it.
c10::intrusive_ptr<c10d::Work> c10d_work(const Work& work, c10d::OpType type);

}  // namespace bellows::parallel
