// A copy of what is about to be saved, in memory that is used again and again.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "bellows/checkpoint/contents.h"
#include "bellows/core/thread_pool.h"

namespace bellows::checkpoint {

class HostCopy {
 public:
  /// Replaces each tensor by a copy on the host, complete on return. The copies are those of the
  /// call before where number, type and shape agree: the contents of that call must be out of use.
  void take(Contents& contents);

 private:
  struct Slot {
    at::Tensor tensor;
    bool pinned = false;
  };
  at::Tensor slot(size_t number, const at::Tensor& like);
  void copy_on_host(const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs);

  std::vector<Slot> slots_;
  std::unique_ptr<ThreadPool> helpers_;
};

}  // namespace bellows::checkpoint
