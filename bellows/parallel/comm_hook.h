// What DistributedDataParallel does with a bucket of gradients once it is full, while the backward
// pass goes on. Source of the behaviour: torch/distributed/algorithms/ddp_comm_hooks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bellows/parallel/group.h"

namespace bellows::parallel {

struct GradBucket {
  /// Buckets are numbered in the order of their reduction, which is the same on all ranks.
  int64_t index = 0;
  bool is_last = false;
  /// This rank's gradients, one after another, [elements]. Not divided by anything.
  at::Tensor tensor;
  /// The gradient of each parameter as a view into `tensor`, of its sizes; the elements are in the
  /// order of the parameter's memory, which for channels-last is not that of its dimensions.
  std::vector<at::Tensor> gradients = {};
  std::vector<at::Tensor> parameters = {};
  std::vector<std::string> names = {};
  /// What makes a sum over ranks the mean: their number (see JoinOptions for the exception).
  int64_t divisor = 1;
};

/// What a hook has begun. `finish` blocks until it is done and gives the reduced bucket, of the
/// size and type of its tensor (which it may be). It is called once, at the end of the backward
/// pass, in the order of the buckets: a collective in it is in the same order on all ranks.
class Reduction {
 public:
  /// Done with the work, which is on the bucket's own tensor.
  Reduction(Work work, const GradBucket& bucket)
      : finish_([work = std::move(work), tensor = bucket.tensor] {
          work.wait();
          return tensor;
        }) {}
  explicit Reduction(std::function<at::Tensor()> finish) : finish_(std::move(finish)) {}
  at::Tensor finish() const { return finish_(); }

 private:
  std::function<at::Tensor()> finish_;
};

/// Called in backward's thread, for one bucket after another; must not block for long. An exception
/// ends the backward pass. All ranks must have the same hook.
using CommHook = std::function<Reduction(const Group& group, GradBucket& bucket)>;

/// The mean over ranks: multiplied by 1 / divisor, then summed. The default.
CommHook all_reduce_hook();
/// The same with half the bytes: rounded to the type, divided, summed in that type.
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();

}  // namespace bellows::parallel
