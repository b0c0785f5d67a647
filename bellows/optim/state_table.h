// State of an optimizer by parameter, and the lists of tensors that LibTorch's kernels over lists
// take, kept from one step to the next. For the sources of optimizers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bellows/optim/state_layout.h"
#include "bellows/tree/tree.h"

namespace bellows::optim {

using TensorVector = std::vector<at::Tensor>;

/// Parameters of one group that have a gradient now, of one device and type, with the same state
/// fields; one parameter where they come one by one. Lists run in parallel.
struct Batch {
  std::vector<size_t> members;  // places in the group
  TensorVector parameters;
  TensorVector gradients;
  std::vector<TensorVector> state;  // by field; empty where it is not used
  std::vector<TensorVector> work;   // as many lists as asked for; their content is undefined
  bool fresh = false;               // their state was made for this step
};

/// Whether a parameter has a field of this extent, its shape then, and whether that is 0-dim
/// float32 whatever the parameter.
bool applies(Extent extent, const at::Tensor& parameter);
std::vector<int64_t> sizes_of(Extent extent, const at::Tensor& parameter);
bool is_number(Extent extent);

class StateTable {
 public:
  StateTable(const StateLayout& layout, std::vector<NamedTensors> groups);

  const StateLayout& layout() const { return layout_; }
  size_t group_count() const { return groups_.size(); }
  /// Throws ValueError for a group that is not there.
  const NamedTensors& parameters(size_t group) const;

  /// What is to be updated in this step; missing state is made. Lists are rebuilt only when
  /// something changed; otherwise nothing is allocated. Throws ValueError that names parameter and
  /// gradient where the two do not go together.
  std::span<Batch> collect(size_t group, const StateNeeds& needs);
  /// Lets go of the gradients, so that dropping them frees their memory.
  void release(size_t group);

  /// One parameter's fields, in order; undefined: not there. Empty: no state yet.
  const TensorVector& state(size_t group, size_t member) const;
  /// Replaces it by copies of `values` in the parameter's type, device and layout.
  void set_state(size_t group, size_t member, const TensorVector& values);

 private:
  // What the lists were built for.
  struct Built {
    bool active = false;
    at::TensorOptions options;
    std::vector<int64_t> sizes, strides;
  };
  struct Group {
    NamedTensors parameters;
    std::vector<TensorVector> state;
    std::vector<Batch> batches;
    std::vector<Built> built;
    StateNeeds needs;
    bool stale = true;
  };

  void check(const std::string& name, const at::Tensor& parameter) const;
  bool up_to_date(const Group& group, const StateNeeds& needs) const;
  void rebuild(Group& group);
  Batch& batch_for(Group& group, const at::Tensor& parameter, bool fresh, uint64_t present) const;
  bool bring_state(Group& group, size_t member);
  static void make_work(Group& group);
  at::Tensor made(const at::Tensor& parameter, size_t field, const StateNeeds& needs) const;
  at::Tensor fitted(const at::Tensor& value, size_t field, const at::Tensor& parameter,
                    bool count_on_device) const;
  at::Tensor gradient_for(const std::string& name, const at::Tensor& parameter) const;

  StateLayout layout_;
  std::vector<Group> groups_;
};

/// Adds 1 to each count (0-dim float32 tensors of one device).
void advance(TensorVector& steps);

/// Autocast's cached casts of the weights are stale after a step.
void drop_autocast_casts();

/// "lr: got -1, expected …" as a ValueError of this optimizer where the value is outside [low,
/// high] or NaN.
void check_range(const std::string& optimizer, const char* key, double value, double low,
                 double high);

}  // namespace bellows::optim
