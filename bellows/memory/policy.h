// Which blocks of a model are recomputed in the backward pass.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bellows/memory/checkpoint.h"
#include "bellows/nn/blocks.h"
#include "bellows/nn/model.h"

namespace bellows::memory {

struct CheckpointPolicy {
  enum class Kind { none, every, segments, budget, operators };
  Kind kind = Kind::none;
  /// Of every: each how many-th block; of segments: how many; of budget: bytes.
  int64_t number = 0;
  /// Of operators.
  std::vector<std::string> names = {};

  static CheckpointPolicy none() { return {}; }
  static CheckpointPolicy every_block() { return every(1); }
  /// Each k-th block is recomputed; the others keep what they save.
  static CheckpointPolicy every(int64_t k) { return {Kind::every, k, {}}; }
  /// The row is cut into so many segments, each recomputed as one: only their inputs are kept.
  /// 0: the root of the number of blocks, which needs least memory for blocks of one size.
  static CheckpointPolicy segments(int64_t count = 0) { return {Kind::segments, count, {}}; }
  /// As few blocks as needed for what a row keeps and recomputes to fit into so many bytes. The
  /// first forward of each input shape recomputes all of them, and measures.
  static CheckpointPolicy budget(int64_t bytes) { return {Kind::budget, bytes, {}}; }
  /// Every block, but the results of these operators are kept: CheckpointOptions::save_operators.
  static CheckpointPolicy operators(std::vector<std::string> names) {
    return {Kind::operators, 0, std::move(names)};
  }

  /// As parse_checkpoint_policy reads it.
  std::string text() const;
};

/// "none", "blocks", "every:2", "segments", "segments:8", "budget:2GiB",
/// "operators:linear,matmul". Throws ValueError that lists these for anything else and for numbers
/// below 1.
CheckpointPolicy parse_checkpoint_policy(const std::string& text);

/// A row of blocks under a policy: BlockRunner. It remembers what a budget has measured. One
/// thread at a time.
class BlockCheckpointing {
 public:
  /// Throws ValueError for a number out of range and for no operators.
  explicit BlockCheckpointing(CheckpointPolicy policy);
  /// `owner` is kept until the backward pass has run.
  at::Tensor run(const std::vector<nn::Block>& blocks, at::Tensor input,
                 const std::shared_ptr<const void>& owner = nullptr);
  /// Which blocks of the last row were recomputed.
  const std::vector<bool>& recomputed() const { return recomputed_; }

 private:
  at::Tensor run_segments(const std::vector<nn::Block>& blocks, at::Tensor input,
                          const std::shared_ptr<const void>& owner) const;
  at::Tensor measure(const std::vector<nn::Block>& blocks, at::Tensor input,
                     const std::shared_ptr<const void>& owner);
  std::vector<bool> plan(const std::vector<int64_t>& inputs,
                         const std::vector<int64_t>& saved) const;

  CheckpointPolicy policy_;
  std::vector<bool> recomputed_;
  std::map<std::vector<int64_t>, std::vector<bool>> plans_;  // by number of blocks, input's shape
};

/// The model with its blocks under the policy, for anything that takes a Model; it is shared, not
/// copied, and has the same names and numbers. mlp (a layer is a block), convnet, resnet18 and
/// transformer have blocks; so has any module whose forward calls nn::run_blocks. Without blocks
/// the policy has no effect, which is said once.
nn::Model checkpointed(nn::Model model, CheckpointPolicy policy);

}  // namespace bellows::memory
