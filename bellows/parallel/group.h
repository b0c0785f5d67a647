// Processes ("ranks") that compute together, over c10d's back-ends (Gloo). The role of
// torch.distributed; names and defaults are its.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "bellows/tree/tree.h"

namespace c10::ivalue {
struct Future;
}

namespace bellows::parallel {

/// How values of several ranks become one. `average` is the sum divided by the number of ranks.
enum class ReduceOp { sum, average, product, min, max, bit_and, bit_or, bit_xor };

/// A collective that has begun. A handle: copies are the same work. Tensors it uses are kept alive
/// by it, and must not be read or written before wait() has returned. Dropping it does not end it.
class Work {
 public:
  class State;
  /// Work that is done: what a group of one process gives.
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// Blocks until all is done, and on a device with streams makes the current one wait for it.
  /// Throws RankError where other ranks did not take part in time; it does so at every call. Any
  /// thread.
  void wait() const;
  /// Never blocks; true as well where it failed.
  bool done() const;
  /// LibTorch's future of the same outcome, for callbacks, which must not wait for other work; its
  /// value is the list of tensors. Its header is ATen/core/ivalue.h. Not of messages between two.
  c10::intrusive_ptr<c10::ivalue::Future> future() const;

 private:
  std::shared_ptr<State> state_;
};

class Group;

/// The collectives of a group, each returning as soon as it has begun: see Group::async.
class AsyncCollectives;

/// A handle; copies are the same group. All ranks of a group must call the same collectives in the
/// same order, with tensors of the same shapes and types unless said otherwise: not from several
/// threads at once. Tensors need not be contiguous. Where the back-end does not know their
/// device, they go through the CPU's memory. Every call has a time-out (timeout()), and ends
/// with a RankError that names this rank, the operation and its sequence number, and the ranks that
/// were not heard from or are elsewhere. After such an error the group is broken: each further call
/// throws the same error at once. Ranks in errors are those of the world. ValueError for what can
/// be seen without the others (an unknown rank, a sparse tensor, a type that cannot be reduced),
/// before anything is sent.
class Group {
 public:
  class State;
  /// A group of this process alone: every collective is the identity.
  Group();
  explicit Group(std::shared_ptr<State> state);

  int64_t rank() const;
  int64_t size() const;
  /// "world", or what subgroup() was given.
  const std::string& name() const;
  /// "gloo"; "none" for a group of one.
  const std::string& backend() const;
  std::chrono::milliseconds timeout() const;
  /// For each rank of this group, its rank in the world.
  const std::vector<int64_t>& world_ranks() const;

  void broadcast(const at::Tensor& tensor, int64_t src = 0) const;
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  /// Several tensors of one type as one operation.
  void all_reduce_coalesced(const std::vector<at::Tensor>& tensors,
                            ReduceOp op = ReduceOp::sum) const;
  /// On other ranks than `dst` the tensor's values are undefined afterwards.
  void reduce(const at::Tensor& tensor, int64_t dst, ReduceOp op = ReduceOp::sum) const;
  /// `outputs`: size() tensors.
  void all_gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input) const;
  /// `output`: [size() * n, …] for an input [n, …], or [size(), n, …].
  void all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input) const;
  /// `outputs`: size() tensors on `dst`, none elsewhere.
  void gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
              int64_t dst = 0) const;
  /// `inputs`: size() tensors on `src`, none elsewhere.
  void scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
               int64_t src = 0) const;
  void reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                      ReduceOp op = ReduceOp::sum) const;
  void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                             ReduceOp op = ReduceOp::sum) const;
  void all_to_all(const std::vector<at::Tensor>& outputs,
                  const std::vector<at::Tensor>& inputs) const;
  /// Rows of dimension 0; without splits, evenly.
  void all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<int64_t>& output_splits = {},
                         const std::vector<int64_t>& input_splits = {}) const;
  void send(const at::Tensor& tensor, int64_t dst, int64_t tag = 0) const;
  /// From any rank where `src` is nothing. Returns the sender.
  int64_t recv(const at::Tensor& tensor, std::optional<int64_t> src = {}, int64_t tag = 0) const;
  void barrier() const;
  /// A barrier on the host whose error names every rank that did not come in time.
  void monitored_barrier(std::optional<std::chrono::milliseconds> timeout = {}) const;

  /// The same without changing the argument: a new tensor.
  at::Tensor all_reduced(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  /// [size(), …]: all ranks' tensors.
  at::Tensor all_gathered(const at::Tensor& tensor) const;

  /// Values of any kind, tensors in them on the CPU. Shapes may differ from rank to rank.
  Tree broadcast_object(const Tree& object, int64_t src = 0) const;
  std::vector<Tree> all_gather_object(const Tree& object) const;

  /// The same collectives without waiting.
  AsyncCollectives async() const;

  /// A group of some of this group's ranks, in that order; nothing on the other ranks. All ranks of
  /// this group must call it, with the same arguments. Throws ValueError for an empty list, a rank
  /// that is not in this group or is named twice, and a name that is taken (which it names).
  std::optional<Group> subgroup(const std::vector<int64_t>& ranks, const std::string& name) const;

  /// Ends what this process has in the group: pending work, threads, connections. Idempotent and
  /// bounded in time; on one rank alone it does not wait for the others. Dropping the last handle
  /// does the same.
  void close() const;

  /// For adapters to LibTorch: the c10d group of the same ranks, as c10d::Reducer takes it (an
  /// intrusive pointer to c10d::ProcessGroup inside; see parallel/c10d.h).
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

class AsyncCollectives {
 public:
  explicit AsyncCollectives(std::shared_ptr<Group::State> group) : group_(std::move(group)) {}
  Work broadcast(const at::Tensor& tensor, int64_t src = 0) const;
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  Work all_reduce_coalesced(const std::vector<at::Tensor>& tensors,
                            ReduceOp op = ReduceOp::sum) const;
  Work reduce(const at::Tensor& tensor, int64_t dst, ReduceOp op = ReduceOp::sum) const;
  Work all_gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input) const;
  Work all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input) const;
  Work gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
              int64_t dst = 0) const;
  Work scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
               int64_t src = 0) const;
  Work reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                      ReduceOp op = ReduceOp::sum) const;
  Work reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                             ReduceOp op = ReduceOp::sum) const;
  Work all_to_all(const std::vector<at::Tensor>& outputs,
                  const std::vector<at::Tensor>& inputs) const;
  Work all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<int64_t>& output_splits = {},
                         const std::vector<int64_t>& input_splits = {}) const;
  Work send(const at::Tensor& tensor, int64_t dst, int64_t tag = 0) const;
  Work barrier() const;

 private:
  std::shared_ptr<Group::State> group_;
};

}  // namespace bellows::parallel
