#include "bellows/nn/blocks.h"

#include <utility>

namespace bellows::nn {
namespace {

thread_local const BlockRunner* in_force = nullptr;

// While alive, no runner is in force.
struct Plainly {
  const BlockRunner* before = std::exchange(in_force, nullptr);
  ~Plainly() { in_force = before; }
};

}  // namespace

at::Tensor run_blocks(const std::vector<Block>& blocks, at::Tensor input) {
  if (const BlockRunner* runner = in_force) {
    const Plainly plainly;
    return (*runner)(blocks, std::move(input));
  }
  for (const Block& block : blocks) input = block.forward(input);
  return input;
}

bool block_runner_in_force() {
  return in_force != nullptr;
}

BlockRunnerGuard::BlockRunnerGuard(BlockRunner runner)
    : runner_(std::move(runner)), before_(std::exchange(in_force, &runner_)) {}

BlockRunnerGuard::~BlockRunnerGuard() {
  in_force = before_;
}

}  // namespace bellows::nn
