// The largest batch that fits.
#pragma once

#include <cstdint>
#include <functional>

#include <c10/core/Device.h>

namespace bellows::memory {

enum class Search { power, binary };

struct BatchSizeOptions {
  /// The first size tried. It is doubled until one fails or `limit` is reached; binary then narrows
  /// it down between the last two.
  Search search = Search::binary;
  int64_t start = 1;
  int64_t limit = int64_t{1} << 20;
  /// How often the result must run in a row: memory that is cut into pieces, and an optimizer's
  /// state, come after the first step. Where it fails, smaller sizes are verified.
  int64_t steps = 3;
  /// Whose cache is emptied between trials.
  c10::Device device = c10::kCPU;
  /// Called after each trial, failed or not: to drop gradients and whatever a step leaves.
  std::function<void()> reset = {};
  /// With several ranks, whether all of them fitted: as an all-reduce with min. Called after each
  /// trial on every rank.
  std::function<bool(bool fits)> agree = {};
};

/// Calls try_batch(size) for different sizes, which runs a whole training step; running out of
/// memory (is_out_of_memory) means that the size does not fit, any other error passes through. With
/// a failed size's tensors freed before the next trial. Throws ValueError for options out of range;
/// Error where not even one sample fits.
int64_t find_batch_size(const std::function<void(int64_t batch_size)>& try_batch,
                        const BatchSizeOptions& options = {});

}  // namespace bellows::memory
