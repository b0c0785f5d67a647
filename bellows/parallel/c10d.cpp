#include "bellows/parallel/c10d.h"

#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "bellows/core/error.h"
#include "bellows/parallel/c10d_store.h"
#include "bellows/parallel/state.h"

namespace bellows::parallel {
namespace {

ReduceOp op_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::average;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::bit_and;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bit_or;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bit_xor;
    default:
      throw ValueError("a process group of Bellows does not know this reduction of c10d");
  }
}

class GroupWork : public c10d::Work {
 public:
  GroupWork(parallel::Work work, int64_t rank, c10d::OpType type)
      : c10d::Work(static_cast<int>(rank), type), work_(std::move(work)) {}
  bool isCompleted() override { return work_.done(); }
  bool isSuccess() const override { return work_.done() && !failure(); }
  std::exception_ptr exception() const override { return failure(); }
  /// The group's own time-out is in force; c10d's argument is not.
  bool wait(std::chrono::milliseconds) override {
    work_.wait();
    return true;
  }
  void synchronize() override { work_.wait(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_.future(); }
  std::vector<at::Tensor> result() override {
    work_.wait();
    return work_.future()->value().toTensorVector();
  }

 private:
  std::exception_ptr failure() const {
    if (!work_.done()) return nullptr;
    try {
      work_.wait();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }
  parallel::Work work_;
};

/// c10d's interface over a group.
class GroupBackend : public c10d::Backend {
 public:
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  explicit GroupBackend(Group group)
      : Backend(static_cast<int>(group.rank()), static_cast<int>(group.size())),
        group_(std::move(group)) {}

  const std::string getBackendName() const override { return group_.backend(); }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return wrap(group_.async().broadcast(one(tensors), options.rootRank), c10d::OpType::BROADCAST);
  }
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return wrap(group_.async().all_reduce(one(tensors), op_of(options.reduceOp)),
                c10d::OpType::ALLREDUCE);
  }
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions&) override {
    if (outputs.size() != 1) throw ValueError("allgather: expected one list of outputs");
    return wrap(group_.async().all_gather(outputs.front(), one(inputs)), c10d::OpType::ALLGATHER);
  }
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions&) override {
    return wrap(group_.async().all_gather_into_tensor(output, input),
                c10d::OpType::_ALLGATHER_BASE);
  }
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override {
    return wrap(group_.async().reduce_scatter_tensor(output, input, op_of(options.reduceOp)),
                c10d::OpType::_REDUCE_SCATTER_BASE);
  }
  WorkPointer barrier(const c10d::BarrierOptions&) override {
    return wrap(group_.async().barrier(), c10d::OpType::BARRIER);
  }

 private:
  static const at::Tensor& one(const Tensors& tensors) {
    if (tensors.size() != 1) throw ValueError("a process group of Bellows takes one tensor a call");
    return tensors.front();
  }
  WorkPointer wrap(const Work& work, c10d::OpType type) const { return c10d_work(work, type); }

  Group group_;
};

}  // namespace

c10::intrusive_ptr<c10d::Work> c10d_work(const Work& work, c10d::OpType type) {
  return c10::make_intrusive<GroupWork>(work, -1, type);
}

c10::intrusive_ptr<c10d::ProcessGroup> process_group(const Group& group) {
  using Type = c10d::ProcessGroup::BackendType;
  c10::intrusive_ptr<c10d::Store> store;
  if (group.state()->world) {
    store = c10d_store(*group.state()->world->store->below("process-group/" + group.state()->id));
  } else {
    store = c10::make_intrusive<c10d::HashStore>();
  }
  auto result = c10::make_intrusive<c10d::ProcessGroup>(store, static_cast<int>(group.rank()),
                                                        static_cast<int>(group.size()));
  const auto backend = c10::make_intrusive<GroupBackend>(group);
  result->setBackend(c10::DeviceType::CPU, Type::GLOO, backend);
  result->setDefaultBackend(Type::GLOO);
  result->setGroupName(group.name());
  return result;
}

}  // namespace bellows::parallel
