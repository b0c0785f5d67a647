// How the built-in models, and containers of modules, run their blocks one after the other. Another
// module may step in between: bellows/memory, which lies above this one, recomputes blocks in the
// backward pass.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace bellows::nn {

/// One of a row of blocks, each of which gets what the one before gives.
struct Block {
  /// What it computes. May be called again, and later than the row has run: it owns what it needs,
  /// or refers to the model, which must then live until the backward pass has run.
  std::function<at::Tensor(const at::Tensor&)> forward;
  /// State that a call changes by itself: batch norm's statistics.
  std::vector<at::Tensor> buffers = {};
};

/// Runs a row of blocks.
using BlockRunner = std::function<at::Tensor(const std::vector<Block>& blocks, at::Tensor input)>;

/// The blocks one after the other, by this thread's runner where there is one. Cheap without one.
at::Tensor run_blocks(const std::vector<Block>& blocks, at::Tensor input);
/// Whether a runner is in force: without one, a model may save itself the list of blocks.
bool block_runner_in_force();

/// While alive, `runner` runs the rows of this thread. It is not in force while it itself runs, so
/// that rows within a block, and plain calls of run_blocks, are run plainly. Guards nest; the
/// innermost counts.
class BlockRunnerGuard {
 public:
  explicit BlockRunnerGuard(BlockRunner runner);
  ~BlockRunnerGuard();
  BlockRunnerGuard(const BlockRunnerGuard&) = delete;
  BlockRunnerGuard& operator=(const BlockRunnerGuard&) = delete;

 private:
  BlockRunner runner_;
  const BlockRunner* before_;
};

}  // namespace bellows::nn
