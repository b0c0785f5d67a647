#include "bellows/parallel/group.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/parallel/flat.h"
#include "bellows/parallel/state.h"

namespace bellows::parallel {

Group::Group() : state_(std::make_shared<State>()) {}
Group::Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

int64_t Group::rank() const {
  return state_->rank;
}
int64_t Group::size() const {
  return state_->size();
}
const std::string& Group::name() const {
  return state_->name;
}
const std::string& Group::backend() const {
  return state_->backend;
}
std::chrono::milliseconds Group::timeout() const {
  return state_->timeout;
}
const std::vector<int64_t>& Group::world_ranks() const {
  return state_->members;
}
AsyncCollectives Group::async() const {
  return AsyncCollectives(state_);
}
void Group::close() const {
  state_->close();
}

void Group::broadcast(const at::Tensor& tensor, int64_t src) const {
  async().broadcast(tensor, src).wait();
}
void Group::all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  async().all_reduce(tensor, op).wait();
}
void Group::all_reduce_coalesced(const std::vector<at::Tensor>& tensors, ReduceOp op) const {
  async().all_reduce_coalesced(tensors, op).wait();
}
void Group::reduce(const at::Tensor& tensor, int64_t dst, ReduceOp op) const {
  async().reduce(tensor, dst, op).wait();
}
void Group::all_gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input) const {
  async().all_gather(outputs, input).wait();
}
void Group::all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input) const {
  async().all_gather_into_tensor(output, input).wait();
}
void Group::gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
                   int64_t dst) const {
  async().gather(input, outputs, dst).wait();
}
void Group::scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                    int64_t src) const {
  async().scatter(output, inputs, src).wait();
}
void Group::reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                           ReduceOp op) const {
  async().reduce_scatter(output, inputs, op).wait();
}
void Group::reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                                  ReduceOp op) const {
  async().reduce_scatter_tensor(output, input, op).wait();
}
void Group::all_to_all(const std::vector<at::Tensor>& outputs,
                       const std::vector<at::Tensor>& inputs) const {
  async().all_to_all(outputs, inputs).wait();
}
void Group::all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                              const std::vector<int64_t>& output_splits,
                              const std::vector<int64_t>& input_splits) const {
  async().all_to_all_single(output, input, output_splits, input_splits).wait();
}
void Group::send(const at::Tensor& tensor, int64_t dst, int64_t tag) const {
  async().send(tensor, dst, tag).wait();
}
void Group::barrier() const {
  async().barrier().wait();
}

int64_t Group::recv(const at::Tensor& tensor, std::optional<int64_t> src, int64_t tag) const {
  check_dense(tensor, "recv");
  if (src && (*src < 0 || *src >= size() || *src == rank())) {
    throw ValueError(concat("recv: got rank ", *src, ", expected another one of the ", size(),
                            " ranks of the group \"", name(), "\""));
  }
  Call call{.operation = "recv",
            .fingerprint = concat("recv from ", src ? concat("rank ", *src) : "any rank")};
  if (src) call.peer = state_->members[static_cast<size_t>(*src)];
  const auto flat =
      std::make_shared<Flat>(Flat::of(tensor, true, !state_->transport()->takes(tensor.device())));
  const auto sender = std::make_shared<int64_t>(rank());
  state_
      ->begin_message(
          std::move(call), {tensor},
          [&](Transport& transport) {
            return transport.receive(flat->bytes(), src.value_or(-1), static_cast<int>(tag));
          },
          [flat] { flat->give_back(); }, sender)
      .wait();
  return *sender;
}

void Group::monitored_barrier(std::optional<std::chrono::milliseconds> timeout) const {
  Call call{.operation = "monitored_barrier", .fingerprint = "monitored_barrier"};
  call.names_all = true;
  call.timeout = timeout;
  state_
      ->begin(
          std::move(call), {},
          [](Transport& transport, Transport::Done done) { transport.barrier(std::move(done)); })
      .wait();
}

at::Tensor Group::all_reduced(const at::Tensor& tensor, ReduceOp op) const {
  at::Tensor result = tensor.detach().clone();
  all_reduce(result, op);
  return result;
}

at::Tensor Group::all_gathered(const at::Tensor& tensor) const {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size());
  at::Tensor result = at::empty(sizes, tensor.options().requires_grad(false));
  all_gather_into_tensor(result, tensor);
  return result;
}

std::optional<Group> Group::subgroup(const std::vector<int64_t>& ranks,
                                     const std::string& name) const {
  const auto shown = [&] {
    return concat("the subgroup \"", name, "\" of \"", state_->name, "\"");
  };
  if (name.empty()) throw ValueError("a subgroup needs a name that is not empty");
  if (ranks.empty()) throw ValueError(shown() + ": got no ranks, expected some");
  std::vector<int64_t> members;
  for (const int64_t rank : ranks) {
    if (rank < 0 || rank >= size()) {
      throw ValueError(concat(shown(), ": got rank ", rank, ", expected 0 to ", size() - 1));
    }
    const int64_t in_world = state_->members[static_cast<size_t>(rank)];
    if (std::ranges::find(members, in_world) != members.end()) {
      throw ValueError(concat(shown(), ": rank ", rank, " is named twice"));
    }
    members.push_back(in_world);
  }
  (void)state_->transport();  // not of a group that is closed
  if (!state_->world) return Group(std::make_shared<State>(name));
  const std::string id = state_->id == "world" ? name : state_->id + "/" + name;
  {
    const std::lock_guard lock(state_->world->mutex);
    if (!state_->world->names.insert(id).second) {
      throw ValueError(concat(shown(), ": the name \"", name, "\" is taken by another group"));
    }
  }
  if (std::ranges::find(ranks, rank()) == ranks.end()) return std::nullopt;
  return Group(std::make_shared<State>(state_->world, name, id, std::move(members)));
}

}  // namespace bellows::parallel
