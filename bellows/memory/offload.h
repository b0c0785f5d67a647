// Activations in the host's memory: what autograd saves on a device is copied to pinned host memory
// behind the computation's back, and comes back before the backward pass needs it. The role of
// torch.autograd.graph.save_on_cpu(pin_memory=True).
#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Device.h>

#include "bellows/memory/saved_tensors.h"

namespace bellows::memory {

struct OffloadOptions {
  /// Smaller tensors stay.
  int64_t least_bytes = int64_t{64} << 10;
  /// How many tensors are on their way back ahead of the one that backward asks for.
  int64_t prefetch = 2;
};

/// What has been moved so far, in bytes.
struct OffloadStats {
  int64_t tensors = 0;     // different memory
  int64_t to_host = 0;     // bytes
  int64_t from_host = 0;   // bytes
  int64_t prefetched = 0;  // tensors that were on their way back before backward asked
};

/// While alive, this thread's forward pass puts what it saves on `device` (parameters and their
/// views apart) into host memory. Copies run on a stream of their own; device memory is free once
/// its copy is done. Backward may run after the guard has ended. For the CPU, where there is
/// nothing to move, it does nothing and says so once. Throws as SavedTensorGuard; ValueError for
/// options below 0.
class OffloadGuard {
 public:
  explicit OffloadGuard(c10::Device device, OffloadOptions options = {});
  ~OffloadGuard();
  OffloadGuard(const OffloadGuard&) = delete;
  OffloadGuard& operator=(const OffloadGuard&) = delete;
  OffloadStats stats() const;

 private:
  class Session;
  class Saved;
  std::shared_ptr<Session> session_;
  std::unique_ptr<SavedTensorGuard> guard_;
};

}  // namespace bellows::memory
