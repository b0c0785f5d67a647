// State of an optimizer by parameter, and the lists of tensors that LibTorch's fused kernels take,
// kept from one step to the next. For the sources of optimizers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bellows/tree/tree.h"

namespace bellows::optim {

/// Parameters of one group that have a gradient now, of one device and type. Lists run in parallel.
struct Batch {
  std::vector<size_t> members;  // places in the group
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<std::vector<at::Tensor>> state;  // by field
  bool fresh = false;                          // their state was made for this step
};

class StateTable {
 public:
  StateTable(std::string optimizer, std::vector<NamedTensors> groups,
             std::vector<std::string> fields);

  const std::string& optimizer() const { return optimizer_; }
  const std::vector<std::string>& fields() const { return fields_; }
  size_t group_count() const { return groups_.size(); }
  /// Throws ValueError for a group that is not there.
  const NamedTensors& parameters(size_t group) const;

  /// What is to be updated in this step, with the state's first `fields` fields; missing state is
  /// made (zeros). Lists are rebuilt only when something changed; otherwise nothing is allocated.
  /// Throws ValueError that names parameter and gradient where the two do not go together.
  std::span<Batch> collect(size_t group, size_t fields);
  /// Lets go of the gradients, so that dropping them frees their memory.
  void release(size_t group);

  /// One parameter's fields, in order; undefined: not there. Empty: no state yet.
  const std::vector<at::Tensor>& state(size_t group, size_t member) const;
  /// Replaces it by copies of `values` in the parameter's type, device and layout.
  void set_state(size_t group, size_t member, const std::vector<at::Tensor>& values);

 private:
  // What the lists were built for.
  struct Built {
    bool active = false;
    at::TensorOptions options;
    std::vector<int64_t> sizes, strides;
  };
  struct Group {
    NamedTensors parameters;
    std::vector<std::vector<at::Tensor>> state;
    std::vector<Batch> batches;
    std::vector<Built> built;
    size_t fields = 0;
    bool stale = true;
  };

  void check(const std::string& name, const at::Tensor& parameter) const;
  bool up_to_date(const Group& group, size_t fields) const;
  void rebuild(Group& group, size_t fields);
  bool bring_state(Group& group, size_t member, size_t fields);
  at::Tensor fitted(const at::Tensor& value, size_t field, const at::Tensor& parameter) const;
  at::Tensor gradient_for(const std::string& name, const at::Tensor& parameter) const;

  std::string optimizer_;
  std::vector<std::string> fields_;
  std::vector<Group> groups_;
};

/// Adds 1 to each count (0-dim float32 tensors of one device).
void advance(std::vector<at::Tensor>& steps);

/// Autocast's cached casts of the weights are stale after a step.
void drop_autocast_casts();

/// "lr: got -1, expected …" as a ValueError of this optimizer where the value is outside [low,
/// high] or NaN.
void check_range(const std::string& optimizer, const char* key, double value, double low,
                 double high);

}  // namespace bellows::optim
