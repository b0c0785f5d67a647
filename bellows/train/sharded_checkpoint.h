// Checkpoints that all ranks of a group write together: each its share of the bytes, in files of
// its own.
#pragma once

#include <cstdint>
#include <filesystem>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/parallel/group.h"

namespace bellows::train {

/// As checkpoint::save, collective: weights and optimizer state, which all ranks must have alike,
/// are spread over the ranks by bytes; everything else is rank 0's. `root` is on a file system that
/// all share. checkpoint::load and everything else that reads a checkpoint takes it, on any number
/// of ranks; `bellows checkpoint convert` makes one file of its weights. Where one rank fails, all
/// throw, as on_all_ranks does, and what was there before stays. Throws ValueError where ranks have
/// other names, shapes or types. The role of torch.distributed.checkpoint.save.
std::filesystem::path save_sharded(const parallel::Group& group, const std::filesystem::path& root,
                                   int64_t step, const nn::Model& model,
                                   const checkpoint::Parts& parts);

}  // namespace bellows::train
