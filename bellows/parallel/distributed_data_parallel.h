// One model on several ranks, each with its part of the batch: gradients are averaged while the
// backward pass computes them. Names, defaults and numbers are those of
// torch.nn.parallel.DistributedDataParallel.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bellows/nn/model.h"
#include "bellows/parallel/comm_hook.h"
#include "bellows/parallel/group.h"
#include "bellows/tree/stateful.h"

namespace torch::nn {
template <class Contained>
class ModuleHolder;
}

namespace bellows::nn::detail {
// From nn/from_module.h, which a source with a torch::nn module is to include as well.
template <class M>
Model any_module(std::shared_ptr<M> module);
}  // namespace bellows::nn::detail

namespace bellows::parallel {

/// For each bucket, in the order of their reduction, the names of its parameters.
using BucketLayout = std::vector<std::vector<std::string>>;

/// The same on all ranks, which is checked.
struct DdpOptions {
  /// Buffers are given rank 0's values at the start and before each forward pass that follows a
  /// reduced one.
  bool broadcast_buffers = true;
  /// Where not given 25, and 1 for the first bucket, so that reduction starts early.
  std::optional<double> bucket_cap_mb = {};
  /// For passes in which the loss does not depend on all parameters: those are found by a walk
  /// through the graph, and a parameter that no rank used keeps its gradient.
  bool find_unused_parameters = false;
  /// Gradients share the buckets' memory: less memory, one copy less. Set them to zero or to
  /// nothing, but do not replace them.
  bool gradient_as_bucket_view = false;
  /// The graph is the same in every iteration: unused parameters cost nothing then, and the first
  /// iteration reduces after the backward pass.
  bool static_graph = false;
  /// Parameters and buffers that are this rank's own: never sent, never reduced.
  std::vector<std::string> parameters_to_ignore = {};
  /// In place of PyTorch's layout, which follows the order of gradients in the first backward pass;
  /// this one stays. From three ranks on the last bits of a sum depend on the layout.
  BucketLayout bucket_layout = {};
  /// Empty: all_reduce_hook().
  CommHook comm_hook = {};
};

/// Everything but the call of a module; also to be used for wrappers of one's own. As a part of a
/// checkpoint it keeps the layout of the buckets, with which a resumed run has the unbroken one's
/// sums, bit for bit. One thread; no copies. Destroy it before the group is closed.
class DdpCore : public Stateful {
 public:
  /// Compares the ranks' models and options first, then broadcasts rank 0's parameters and buffers.
  /// Throws, on all ranks, ValueError that names what differs and where; for a name to ignore that
  /// the model does not have; for a layout that does not have each trained parameter once, each
  /// bucket of one type and device; for a model without parameters to train. The model must stay on
  /// its device, with the parameters and the requires_grad it has now.
  DdpCore(nn::Model model, Group group, DdpOptions options = {});
  ~DdpCore() override;
  DdpCore(const DdpCore&) = delete;
  DdpCore& operator=(const DdpCore&) = delete;

  class State;

  /// Around one forward pass: end() is given the tensors in the output. Without end() the pass has
  /// failed.
  class Forward {
   public:
    explicit Forward(State& state);
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;
    void end(const std::vector<at::Tensor>& outputs);

   private:
    struct Watch;
    State& state_;
    std::unique_ptr<Watch> watch_;
  };
  /// Throws ValueError where the pass before was not completed: it names the parameters that got no
  /// gradient, rank and iteration. Collective where buffers are broadcast.
  Forward forward_pass() { return Forward(*state_); }

  /// While alive, forward passes and the backward passes of their losses add gradients up without
  /// reducing them; the first reduced pass afterwards reduces the sum.
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<State> state);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<State> state_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(state_); }

  /// The model for what takes a nn::Model (Trainer, step functions): its parameters and names, and
  /// a forward through this object, which it keeps alive.
  nn::Model model() const;
  const Group& group() const;
  /// Reduced forward passes so far.
  int64_t iteration() const;
  /// Of the next reduced pass.
  BucketLayout bucket_layout() const;

  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

namespace detail {

// The tensors in what a forward gives.
inline void collect(const at::Tensor& value, std::vector<at::Tensor>& out) {
  if (value.defined()) out.push_back(value);
}
inline void collect(const Tree& value, std::vector<at::Tensor>& out) {
  value.for_each_tensor(
      [&](const std::string&, const at::Tensor& tensor) { collect(tensor, out); });
}
template <class T>
void collect(const std::optional<T>& value, std::vector<at::Tensor>& out);
template <class T>
void collect(const std::vector<T>& values, std::vector<at::Tensor>& out);
template <class Key, class T>
void collect(const std::map<Key, T>& values, std::vector<at::Tensor>& out);
template <class First, class Second>
void collect(const std::pair<First, Second>& value, std::vector<at::Tensor>& out);
template <class... Parts>
void collect(const std::tuple<Parts...>& value, std::vector<at::Tensor>& out) {
  std::apply([&](const auto&... parts) { (collect(parts, out), ...); }, value);
}
template <class First, class Second>
void collect(const std::pair<First, Second>& value, std::vector<at::Tensor>& out) {
  collect(value.first, out);
  collect(value.second, out);
}
template <class T>
void collect(const std::optional<T>& value, std::vector<at::Tensor>& out) {
  if (value) collect(*value, out);
}
template <class T>
void collect(const std::vector<T>& values, std::vector<at::Tensor>& out) {
  for (const T& value : values) collect(value, out);
}
template <class Key, class T>
void collect(const std::map<Key, T>& values, std::vector<at::Tensor>& out) {
  for (const auto& [key, value] : values) collect(value, out);
}

}  // namespace detail

/// A torch::nn module on several ranks: `ddp(x, mask)` calls the module's forward with these
/// arguments and gives what it gives (tensors, or tuples, pairs, vectors, maps and optionals of
/// them, or a Tree); `ddp->` is the module. The module is shared, not copied.
///   DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
template <class M = nn::Model>
class DistributedDataParallel : public DdpCore {
 public:
  explicit DistributedDataParallel(std::shared_ptr<M> module, Group group, DdpOptions options = {})
      : DdpCore(nn::detail::any_module(module), std::move(group), std::move(options)),
        module_(std::move(module)) {}
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& module, Group group,
                          DdpOptions options = {})
      : DistributedDataParallel(module.ptr(), std::move(group), std::move(options)) {}

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    auto pass = forward_pass();
    auto output = module_->forward(std::forward<Arguments>(arguments)...);
    std::vector<at::Tensor> tensors;
    detail::collect(output, tensors);
    pass.end(tensors);
    return output;
  }
  M* operator->() const { return module_.get(); }

 private:
  std::shared_ptr<M> module_;
};

/// The same of any model: TorchScript modules, functions.
template <>
class DistributedDataParallel<nn::Model> : public DdpCore {
 public:
  explicit DistributedDataParallel(nn::Model model, Group group, DdpOptions options = {})
      : DdpCore(model, std::move(group), std::move(options)), model_(std::move(model)) {}
  /// As Model::forward: a list is spread over forward's arguments.
  Tree operator()(const Tree& input) {
    auto pass = forward_pass();
    Tree output = model_.forward(input);
    std::vector<at::Tensor> tensors;
    detail::collect(output, tensors);
    pass.end(tensors);
    return output;
  }
  const nn::Model* operator->() const { return &model_; }

 private:
  nn::Model model_;
};

template <class M>
DistributedDataParallel(const torch::nn::ModuleHolder<M>&, Group, DdpOptions = {})
    -> DistributedDataParallel<M>;
DistributedDataParallel(nn::Model, Group, DdpOptions = {})->DistributedDataParallel<nn::Model>;

}  // namespace bellows::parallel
