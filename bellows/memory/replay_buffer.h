// A ring of samples in memory taken once.
#pragma once

#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include "bellows/tree/stateful.h"

namespace bellows::memory {

/// Keeps the last `capacity` samples, each copied into tensors [capacity, …] that are made with the
/// first sample and never again: small tensors that are made and dropped at random leave holes in
/// the heap, and the process grows. Samples are Trees of tensors of the same structure, shapes and
/// types. One thread at a time.
class ReplayBuffer : public Stateful {
 public:
  /// Throws ValueError for a capacity below 1.
  explicit ReplayBuffer(int64_t capacity, c10::Device device = c10::kCPU);

  /// Copies the values, without a graph, over the oldest sample where the ring is full. Throws
  /// ValueError that names the tensor where a sample differs from the first in structure, shape or
  /// type.
  void push(const Tree& sample);
  /// `count` samples drawn with equal chances, each anew: tensors [count, …]. From the generator
  /// of the CPU: the same on every device. Throws ValueError while empty and for a count below 1.
  Tree sample(int64_t count, const std::optional<at::Generator>& generator = {}) const;
  int64_t size() const { return size_; }
  int64_t capacity() const { return capacity_; }

  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  void check(const Tree& sample) const;

  int64_t capacity_;
  c10::Device device_;
  Tree data_;  // nothing before the first sample
  int64_t size_ = 0;
  int64_t next_ = 0;
};

}  // namespace bellows::memory
