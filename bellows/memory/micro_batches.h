// A batch in parts that fit, with the gradients of the whole.
#pragma once

#include <cstdint>
#include <functional>

#include <c10/core/Device.h>

#include "bellows/tree/tree.h"

namespace bellows::memory {

/// One part of a batch.
struct MicroBatch {
  Tree batch;
  int64_t samples = 0;
  /// Its share of the samples: what its mean loss is multiplied with before backward, so that the
  /// gradients add up to the whole batch's. (Batch norm still sees each part alone.)
  double weight = 1;
  int64_t index = 0;
  int64_t count = 1;
};

struct MicroBatchOptions {
  /// How many parts a batch has at first.
  int64_t parts = 1;
  /// Whose cache is emptied after a failed attempt.
  c10::Device device = c10::kCPU;
  /// With several ranks, whether all of them came through: as an all-reduce with min. Called after
  /// each attempt on every rank, so an attempt must contain no collective (of
  /// DistributedDataParallel: no_sync), which a rank that failed would not take part in.
  std::function<bool(bool fits)> agree = {};
};

/// Runs steps in as few parts as fit: after running out of memory the number of parts is doubled,
/// which is logged once, and kept for later batches. One thread.
class MicroBatches {
 public:
  /// Throws ValueError for parts < 1.
  explicit MicroBatches(MicroBatchOptions options = {});

  /// Calls `step` for each part, which runs forward and backward (loss times weight). Where memory
  /// runs out, in any of them, `undo` is called, which drops the gradients of the attempt; what it
  /// held is freed, and all is done anew in twice as many parts. Other errors pass through, and so
  /// does the last one where parts of one sample do not fit. Random numbers of a repeated attempt
  /// are those of the first. Throws ValueError for a batch without samples.
  void run(const Tree& batch, const std::function<void(const MicroBatch&)>& step,
           const std::function<void()>& undo);
  int64_t parts() const { return parts_; }

 private:
  MicroBatchOptions options_;
  int64_t parts_;
};

/// The batch in `count` parts as even as can be (fewer where it has fewer samples): every tensor
/// with dimensions is cut along the first, everything else is in each part. Throws ValueError that
/// names the tensors whose first dimensions differ.
std::vector<MicroBatch> split_batch(const Tree& batch, int64_t count);

/// The samples of a batch: the first dimension of its tensors. Throws as split_batch.
int64_t batch_samples(const Tree& batch);

}  // namespace bellows::memory
