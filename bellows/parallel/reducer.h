// Buckets of gradients, reduced while the backward pass goes on: c10d::Reducer with what it lacks
// without Python. reducer.cpp is the only source that sees c10d's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/parallel/comm_hook.h"
#include "bellows/tree/tree.h"

namespace bellows::parallel {

/// For each bucket, in the order of their reduction, its parameters' places in the list.
using BucketIndices = std::vector<std::vector<size_t>>;

struct ReducerOptions {
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
  /// Empty: PyTorch's, which are made anew after the first backward pass by its order.
  BucketIndices buckets = {};
};

class Reducer {
 public:
  /// What a sum over ranks is divided by; asked at each pass's first bucket.
  using Divisor = std::function<int64_t()>;

  /// Parameters that want gradients, at least one. The same on all ranks.
  Reducer(Group group, const NamedTensors& parameters, const ReducerOptions& options, CommHook hook,
          Divisor divisor);
  ~Reducer();

  /// Around each forward pass whose backward pass is to reduce: throws where the one before was not
  /// completed, naming the parameters that got no gradient.
  void prepare_for_forward();
  void prepare_for_backward(const std::vector<at::Tensor>& outputs);
  /// Around each forward pass whose gradients are only added up.
  void prepare_without_reduction();

  /// The collectives of one backward pass, with zeros, for a rank that has no data any more.
  void shadow_backward();

  /// Counted from 1 at the first prepare_for_forward; 0 before.
  int64_t iteration() const;
  BucketIndices buckets() const;
  /// Whether `buckets` stay as they are.
  bool settled() const;
  /// Not during a pass.
  void set_buckets(const BucketIndices& buckets, bool settled);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace bellows::parallel
