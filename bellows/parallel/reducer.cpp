#include "bellows/parallel/reducer.h"

#include <algorithm>
#include <limits>
#include <span>
#include <type_traits>
#include <unordered_set>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/parallel/c10d.h"

namespace bellows::parallel {
namespace {

using Node = torch::autograd::Node;
using GroupPointer = c10::intrusive_ptr<c10d::ProcessGroup>;
using Names = std::unordered_map<size_t, std::string>;

// LibTorch counts references to a node with either, by version.
template <class T>
std::weak_ptr<T> weakly(const std::shared_ptr<T>& node) {
  return node;
}
template <class T>
c10::weak_intrusive_ptr<T> weakly(const c10::intrusive_ptr<T>& node) {
  return c10::weak_intrusive_ptr<T>(node);
}
using WeakNode = decltype(weakly(std::declval<at::Tensor>().grad_fn()));

struct Made {
  std::vector<at::Tensor> tensors;
  BucketIndices buckets;
  GroupPointer group;
  ReducerOptions options;
  Names names;
};

// c10d::Reducer's constructor, by version: 13 arguments in 2.14, 12 without the batched copy, and
// before that the limits of single buckets in place of a list of capacities.
template <class R, class Base>
std::shared_ptr<R> make(const Made& made, const std::vector<std::string>& names) {
  using Sparse = std::vector<bool>;
  using Caps = std::vector<int64_t>;
  const Sparse sparse(made.tensors.size(), false);
  const int64_t bytes = made.options.bucket_bytes, first = made.options.first_bucket_bytes;
  const bool find = made.options.find_unused_parameters;
  const bool view = made.options.gradient_as_bucket_view;
  if constexpr (std::is_constructible_v<Base, std::vector<at::Tensor>, BucketIndices, GroupPointer,
                                        Sparse, int64_t, bool, bool, Names, int64_t, bool, bool,
                                        Caps>) {
    return std::make_shared<R>(names, made.tensors, made.buckets, made.group, sparse, bytes, find,
                               view, made.names, first, false, false, Caps{});
  } else if constexpr (std::is_constructible_v<Base, std::vector<at::Tensor>, BucketIndices,
                                               GroupPointer, Sparse, int64_t, bool, bool, Names,
                                               int64_t, bool, bool>) {
    return std::make_shared<R>(names, made.tensors, made.buckets, made.group, sparse, bytes, find,
                               view, made.names, first, false, false);
  } else {
    const std::vector<size_t> limits(made.buckets.size(), static_cast<size_t>(bytes));
    return std::make_shared<R>(names, made.tensors, made.buckets, limits, made.group, sparse, bytes,
                               find, view, made.names, first, false, false);
  }
}

// PyTorch's first layout: one bucket (a type and device) where it will be made anew, and by size
// where it will not; reversed, as gradients come from the back.
BucketIndices first_buckets(const std::vector<at::Tensor>& tensors, const ReducerOptions& options) {
  std::vector<size_t> limits{std::numeric_limits<size_t>::max()};
  if (options.find_unused_parameters && !options.static_graph) {
    limits = {static_cast<size_t>(options.bucket_bytes)};
    if (options.first_bucket_bytes < options.bucket_bytes)
      limits.insert(limits.begin(), static_cast<size_t>(options.first_bucket_bytes));
  }
  const auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      tensors, limits, std::vector<bool>(tensors.size(), false)));
  return {buckets.rbegin(), buckets.rend()};
}

constexpr int64_t kNotReady = std::numeric_limits<int64_t>::min();

}  // namespace

class Reducer::Impl : public c10d::Reducer {
 public:
  template <class... Arguments>
  explicit Impl(const std::vector<std::string>& names, const Arguments&... arguments)
      : c10d::Reducer(arguments...), names_(names), added_up_(names.size(), false) {
    ddp_graph_static_ = false;  // it only serves a logger, which there is none of
  }

  ~Impl() noexcept(false) {
    for (size_t i = 0; i < keys_.size(); ++i) grad_accumulators_[i]->del_post_hook(keys_[i]);
  }

  void start(Group group, CommHook hook, Divisor divisor, bool settled) {
    group_ = std::move(group);
    hook_ = std::move(hook);
    divisor_ = std::move(divisor);
    has_rebuilt_bucket_ = settled;
    register_comm_hook(std::make_unique<Hook>(*this));
    for (size_t i = 0; i < grad_accumulators_.size(); ++i)
      keys_.push_back(grad_accumulators_[i]->add_post_hook(
          std::make_unique<torch::autograd::utils::LambdaPostHook>(
              [this, i](const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>&) {
                on_gradient(i);
                return outputs;
              })));
  }

  void before_forward() {
    refuse_unfinished();
    prepare_for_forward();
  }

  void before_backward(const std::vector<at::Tensor>& outputs) {
    const bool search = find_unused_parameters_ && !static_graph_;
    prepare_for_backward(search ? outputs : std::vector<at::Tensor>());
    const std::lock_guard lock(mutex_);
    adding_up_ = queued_ = false;
    begun_.clear();
    divided_by_ = 0;
    roots_.clear();
    for (const auto& output : outputs)
      if (const auto& node = output.grad_fn()) roots_.push_back(weakly(node));
    for (int64_t& time : backward_stats_) time = kNotReady;
    if (search)
      for (size_t i = 0; i < added_up_.size(); ++i)
        if (added_up_[i] && params_[i].grad().defined())
          local_used_map_[static_cast<int64_t>(i)] = 1;
  }

  void without_reduction() {
    refuse_unfinished();
    const std::lock_guard lock(mutex_);
    if (static_graph_ && !static_begun_)
      throw ValueError(
          "no_sync() before the first reduced pass: got static_graph = true, which learns the "
          "graph "
          "in the first iteration. Run one iteration outside of no_sync() first.");
    adding_up_ = true;
  }

  void shadow() {
    {
      const std::lock_guard lock(mutex_);
      begun_.clear();
      divided_by_ = 0;
    }
    for (auto& bucket : get_grad_buckets(true)) run_comm_hook(bucket);
    if (find_unused_parameters_ && !static_graph_) {
      // What was left there by the last pass must not count as used.
      std::vector<at::Tensor> unused{get_local_used_map_on_device().zero_()};
      process_group_->allreduce(unused)->wait();
    }
    for (const auto& reduction : begun_) reduction.finish();
    push_rebuilt_params_for_all_indices();
    rebuild_buckets();
  }

  int64_t iteration() const { return num_iterations_; }

  BucketIndices layout() const {
    const std::lock_guard lock(mutex_);
    BucketIndices out;
    for (const auto& bucket : buckets_) out.push_back(bucket.variable_indices);
    return out;
  }

  bool settled() const { return !should_rebuild_buckets(); }

  void set_layout(const BucketIndices& layout, bool settled) {
    const std::lock_guard lock(mutex_);
    initialize_buckets(layout);
    has_rebuilt_bucket_ = settled;
    rebuilt_params_.clear();
    rebuilt_param_indices_.clear();
  }

 private:
  // The value of the future is only the bucket's number: waiting is left to the end of the pass, so
  // that an error is thrown there, in our words.
  struct Hook : c10d::CommHookInterface {
    explicit Hook(Impl& reducer) : reducer(reducer) {}
    c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
      return reducer.begin(bucket);
    }
    at::Tensor parseHookResult(const c10::IValue& number) override {
      return reducer.begun_.at(static_cast<size_t>(number.toInt())).finish();
    }
    Impl& reducer;
  };

  // The reducer's lock is held, except in shadow().
  c10::intrusive_ptr<c10::ivalue::Future> begin(c10d::GradBucket& bucket) {
    const size_t number = begun_.size();
    if (number == 0) divided_by_ = divisor_();
    GradBucket out{.index = static_cast<int64_t>(number),
                   .is_last = number + 1 == buckets_.size(),
                   .tensor = bucket.getBuffer(),
                   .gradients = bucket.getGradients(),
                   .divisor = divided_by_};
    for (const size_t i : buckets_.at(number).variable_indices) {
      out.parameters.push_back(params_[i]);
      out.names.push_back(names_[i]);
    }
    begun_.push_back(described(out));
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    future->markCompleted(static_cast<int64_t>(number));
    return future;
  }

  // Whatever the hook begins, now or at the end, says in its errors what it is about.
  Reduction described(GradBucket& bucket) {
    const std::string detail = concat("bucket ", bucket.index, ": ", shortened(bucket.names));
    const Describe what(detail, bucket.index);
    return Reduction([reduction = hook_(group_, bucket), detail, index = bucket.index] {
      const Describe what(detail, index);
      return reduction.finish();
    });
  }

  static std::string shortened(const std::vector<std::string>& names) {
    constexpr size_t kMost = 8;
    if (names.size() <= kMost) return bellows::join(names);
    return concat(bellows::join(std::span(names).first(kMost)), " and ", names.size() - kMost,
                  " more");
  }

  void on_gradient(size_t index) {
    const std::lock_guard lock(mutex_);
    if (!expect_autograd_hooks_) {
      if (!adding_up_)
        throw ValueError(concat(
            "Got a gradient of ", names_[index], " on rank ", group_.rank(),
            " in a backward pass that no forward pass through DistributedDataParallel belongs to: "
            "it would stay this rank's own. Call the model through it, once for each backward pass "
            "(add up several losses first), or inside no_sync()."));
      added_up_[index] = true;
    } else if (!queued_) {
      queued_ = true;
      torch::autograd::Engine::get_default_engine().queue_callback([this] { after_gradients(); });
    }
  }

  // When all gradients of a reduced pass are there. What this queues runs after what the reducer
  // has queued by then.
  void after_gradients() {
    if (static_graph_ && !static_begun_) {
      static_begun_ = true;
      delay_all_reduce();
    } else {
      const std::lock_guard lock(mutex_);
      queued_ = false;
      if (next_bucket_ < buckets_.size()) complete();
    }
    torch::autograd::Engine::get_default_engine().queue_callback([this] { after_reduction(); });
  }

  // Gradients that did not come: of parameters behind outputs that the loss does not use, or used
  // only in earlier passes of no_sync().
  void complete() {
    const std::vector<size_t> missing = without_gradient();
    bool expected = find_unused_parameters_ && !static_graph_;
    if (!expected)
      expected =
          std::all_of(missing.begin(), missing.end(), [&](size_t i) { return added_up_[i]; });
    if (!expected && reachable(missing)) return;  // another backward pass may bring them
    if (!expected) refuse(missing);
    for (const size_t i : missing) {
      if (should_rebuild_buckets()) push_rebuilt_params(i);
      mark_variable_ready(i);
    }
  }

  void after_reduction() {
    {
      const std::lock_guard lock(mutex_);
      if (expect_autograd_hooks_) return;
      std::fill(added_up_.begin(), added_up_.end(), false);
      roots_.clear();
    }
    // Now, not before the next forward pass, so that the layout of the next pass can be saved.
    rebuild_buckets();
  }

  std::vector<size_t> without_gradient() const {
    std::vector<size_t> out;
    for (size_t i = 0; i < backward_stats_.size(); ++i)
      if (backward_stats_[i] == kNotReady) out.push_back(i);
    return out;
  }

  void refuse_unfinished() {
    const std::lock_guard lock(mutex_);
    if (require_finalize_) refuse(without_gradient());
  }

  [[noreturn]] void refuse(const std::vector<size_t>& missing) const {
    std::vector<std::string> names;
    for (const size_t i : missing) names.push_back(names_[i]);
    const char* remedy = find_unused_parameters_ || static_graph_
                             ? "Use every output of the forward pass in the loss."
                             : "Set find_unused_parameters = true, or use all of them in the loss.";
    throw ValueError(concat(
        "No gradient for ", bellows::join(names), " on rank ", group_.rank(),
        " in the backward pass of "
        "iteration ",
        num_iterations_, ": the loss does not depend on ", names.size() == 1 ? "it" : "them",
        ", and the other ranks wait for the reduction. ", remedy,
        static_graph_ ? " static_graph = true takes the same graph in every iteration." : ""));
  }

  // Whether the graph behind the last forward pass's outputs, as far as it is still there, leads to
  // all of these parameters.
  bool reachable(const std::vector<size_t>& parameters) const {
    std::unordered_set<const Node*> seen;
    std::vector<const Node*> open;
    std::vector<decltype(roots_.front().lock())> alive;
    for (const auto& root : roots_)
      if (auto node = root.lock()) {
        open.push_back(&*node);
        alive.push_back(std::move(node));
      }
    while (!open.empty()) {
      const Node* node = open.back();
      open.pop_back();
      for (const auto& edge : node->next_edges())
        if (edge.function && seen.insert(&*edge.function).second) open.push_back(&*edge.function);
    }
    return std::all_of(parameters.begin(), parameters.end(),
                       [&](size_t i) { return seen.contains(&*grad_accumulators_[i]); });
  }

  std::vector<std::string> names_;
  Group group_;
  CommHook hook_;
  Divisor divisor_;
  std::vector<uintptr_t> keys_;
  std::vector<Reduction> begun_;  // of the pass at hand, by bucket
  int64_t divided_by_ = 0;
  std::vector<bool> added_up_;  // got a gradient since the last reduction
  std::vector<WeakNode> roots_;
  bool adding_up_ = false;  // the last forward pass was one without reduction
  bool queued_ = false;
  bool static_begun_ = false;
};

Reducer::Reducer(Group group, const NamedTensors& parameters, const ReducerOptions& options,
                 CommHook hook, Divisor divisor) {
  Made made{.tensors = {},
            .buckets = options.buckets,
            .group = process_group(group),
            .options = options,
            .names = {}};
  std::vector<std::string> names;
  for (const auto& [name, tensor] : parameters) {
    made.names.emplace(names.size(), name);
    names.push_back(name);
    made.tensors.push_back(tensor);
  }
  if (made.buckets.empty()) made.buckets = first_buckets(made.tensors, options);
  impl_ = make<Impl, c10d::Reducer>(made, names);
  if (options.static_graph) impl_->set_static_graph();
  impl_->start(std::move(group), std::move(hook), std::move(divisor), !options.buckets.empty());
}

Reducer::~Reducer() = default;

void Reducer::prepare_for_forward() {
  impl_->before_forward();
}
void Reducer::prepare_for_backward(const std::vector<at::Tensor>& outputs) {
  impl_->before_backward(outputs);
}
void Reducer::prepare_without_reduction() {
  impl_->without_reduction();
}
void Reducer::shadow_backward() {
  impl_->shadow();
}
int64_t Reducer::iteration() const {
  return impl_->iteration();
}
BucketIndices Reducer::buckets() const {
  return impl_->layout();
}
bool Reducer::settled() const {
  return impl_->settled();
}
void Reducer::set_buckets(const BucketIndices& buckets, bool settled) {
  impl_->set_layout(buckets, settled);
}

}  // namespace bellows::parallel
