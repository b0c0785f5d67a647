// One checkpointed call: what was saved, and how to compute it again. Internal.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "bellows/memory/checkpoint.h"
#include "bellows/memory/kept_operators.h"
#include "bellows/memory/saved_tensors.h"
#include "bellows/memory/surroundings.h"

namespace bellows::memory::detail {

/// What must be the same of a tensor both times.
struct Metadata {
  c10::DimVector sizes;
  at::ScalarType type;
  c10::Device device;
  static Metadata of(const at::Tensor& tensor);
  bool operator==(const Metadata& other) const = default;
  std::string text() const;
};

/// Places of saved tensors, in the order in which autograd saves them. A place is dropped when the
/// graph lets go of it. Any thread.
class Frame : public std::enable_shared_from_this<Frame> {
 public:
  Frame(const Tree& inputs, Region::Recompute recompute, CheckpointOptions options);

  /// First time: the number of the new place.
  size_t add(const at::Tensor& tensor, bool parameter);
  void drop(size_t place);
  void complete();
  /// The value of a place, recomputed where this backward pass has not done so yet.
  at::Tensor take(size_t place);

  KeptOperators& kept() { return kept_; }

  /// One recomputation: gets the tensors that autograd saves in it.
  class Run;

 private:
  struct Place {
    Metadata metadata;
    bool alive = true;
  };
  using Values = std::vector<at::Tensor>;  // by place; undefined: dropped, or taken

  Tree inputs();
  Values recompute();
  void check(const Run& run) const;

  Tree structure_;  // of the inputs, without tensors
  std::vector<torch::autograd::SavedVariable> inputs_;
  Region::Recompute recompute_;
  const CheckpointOptions options_;
  const Surroundings surroundings_;
  KeptOperators kept_;

  // Recursive, as what a recomputation overwrites may hold the last handle to a place.
  std::recursive_mutex mutex_;
  std::vector<Place> places_;
  std::map<int, Values> values_;  // by backward pass
  bool complete_ = false;
};

}  // namespace bellows::memory::detail
