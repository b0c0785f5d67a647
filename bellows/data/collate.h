// From samples to a batch.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "bellows/core/error.h"
#include "bellows/data/batch_memory.h"
#include "bellows/tree/tree.h"

namespace bellows::data {

/// A sample does not go with the first one of its batch. `position` is its place in the batch.
class CollateError : public ValueError {
 public:
  CollateError(size_t position, const std::string& what) : ValueError(what), position_(position) {}
  size_t position() const { return position_; }

 private:
  size_t position_;
};

struct CollateOptions {
  /// Where set, tensors of equal rank and type may differ in size: each becomes as large as the
  /// largest of its batch in every dimension, filled up at the ends with this value (as
  /// torch.nn.utils.rnn.pad_sequence with batch_first, for any rank).
  std::optional<double> pad;
};

/// Stacks samples of equal structure, as torch.utils.data.default_collate: tensors are stacked,
/// numbers become tensors (int64, float64, bool), strings become a list, lists and dictionaries are
/// collated entry by entry. Every sample is copied once, into memory from `memory`. Throws
/// CollateError naming the sample's position, the entry's path and what differs (kind, shape, type,
/// device, length, keys); unlike PyTorch's, types are never promoted. Tensors must be dense and on
/// the CPU.
Tree collate(std::span<const Tree> samples, BatchMemory& memory,
             const CollateOptions& options = {});
/// The same in memory that is not reused.
Tree collate(std::span<const Tree> samples);

/// What a loader makes its batches with; called from many threads at once. Samples are its to
/// consume.
using Collate = std::function<Tree(std::span<const Tree> samples, BatchMemory& memory)>;

}  // namespace bellows::data
