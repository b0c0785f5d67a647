// The only source that sees ProcessGroupGloo, for which Gloo's own headers are needed (names
// alone).
#define USE_C10D_GLOO 1
#include <cstdlib>
#include <sstream>
#include <utility>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "bellows/core/error.h"
#include "bellows/parallel/c10d_store.h"
#include "bellows/parallel/transport.h"

namespace bellows::parallel {
namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;
using Tensors = Transport::Tensors;

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::bit_and:
      return c10d::ReduceOp::BAND;
    case ReduceOp::bit_or:
      return c10d::ReduceOp::BOR;
    case ReduceOp::bit_xor:
      return c10d::ReduceOp::BXOR;
    default:
      return c10d::ReduceOp::SUM;
  }
}

/// The work is kept by the callback, as c10d's thread lets go of it first.
void follow(const WorkPointer& work, Transport::Done done) {
  work->getFuture()->addCallback([work, done = std::move(done)](c10::ivalue::Future& future) {
    done(future.hasError() ? future.exception_ptr() : nullptr);
  });
}

class GlooMessage : public Transport::Message {
 public:
  GlooMessage(WorkPointer work, bool receives, int64_t rank)
      : work_(std::move(work)), receives_(receives), rank_(rank) {}
  int64_t wait() override {
    if (!work_->wait()) throw Error("aborted");
    return receives_ ? work_->sourceRank() : rank_;
  }
  void abort() override { work_->abort(); }

 private:
  WorkPointer work_;
  bool receives_;
  int64_t rank_;
};

class Gloo : public Transport {
 public:
  explicit Gloo(c10::intrusive_ptr<c10d::ProcessGroupGloo> group) : group_(std::move(group)) {}

  void broadcast(const at::Tensor& tensor, int64_t root, Done done) override {
    Tensors tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    follow(group_->broadcast(tensors, options), std::move(done));
  }
  void all_reduce(const at::Tensor& tensor, ReduceOp op, Done done) override {
    Tensors tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_op(op);
    follow(group_->allreduce(tensors, options), std::move(done));
  }
  void reduce(const at::Tensor& tensor, int64_t root, ReduceOp op, Done done) override {
    Tensors tensors{tensor};
    c10d::ReduceOptions options;
    options.reduceOp = c10d_op(op);
    options.rootRank = root;
    follow(group_->reduce(tensors, options), std::move(done));
  }
  void all_gather(const Tensors& outputs, const at::Tensor& input, Done done) override {
    std::vector<Tensors> lists{outputs};
    Tensors inputs{input};
    follow(group_->allgather(lists, inputs), std::move(done));
  }
  void gather(const Tensors& outputs, const at::Tensor& input, int64_t root, Done done) override {
    std::vector<Tensors> lists;
    if (!outputs.empty()) lists.push_back(outputs);
    Tensors inputs{input};
    c10d::GatherOptions options;
    options.rootRank = root;
    follow(group_->gather(lists, inputs, options), std::move(done));
  }
  void scatter(const at::Tensor& output, const Tensors& inputs, int64_t root, Done done) override {
    std::vector<Tensors> lists;
    if (!inputs.empty()) lists.push_back(inputs);
    Tensors outputs{output};
    c10d::ScatterOptions options;
    options.rootRank = root;
    follow(group_->scatter(outputs, lists, options), std::move(done));
  }
  void all_to_all(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<int64_t>& output_splits,
                  const std::vector<int64_t>& input_splits, Done done) override {
    at::Tensor to = output, from = input;
    auto to_splits = output_splits, from_splits = input_splits;
    follow(group_->alltoall_base(to, from, to_splits, from_splits), std::move(done));
  }
  void barrier(Done done) override { follow(group_->barrier(), std::move(done)); }

  std::shared_ptr<Message> send(const at::Tensor& tensor, int64_t to, int tag) override {
    Tensors tensors{tensor};
    return std::make_shared<GlooMessage>(group_->send(tensors, static_cast<int>(to), tag), false,
                                         group_->getRank());
  }
  std::shared_ptr<Message> receive(const at::Tensor& tensor, int64_t from, int tag) override {
    Tensors tensors{tensor};
    return std::make_shared<GlooMessage>(from < 0
                                             ? group_->recvAnysource(tensors, tag)
                                             : group_->recv(tensors, static_cast<int>(from), tag),
                                         true, group_->getRank());
  }
  bool takes(c10::Device device) const override { return device.is_cpu(); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

std::unique_ptr<Transport> gloo_transport(const Store& store, int64_t rank, int64_t size,
                                          std::chrono::milliseconds timeout, bool loopback) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  if (interfaces != nullptr && *interfaces != '\0') {
    std::istringstream names(interfaces);
    for (std::string name; std::getline(names, name, ',');) {
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
  } else if (loopback) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  return std::make_unique<Gloo>(c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10d_store(store), static_cast<int>(rank), static_cast<int>(size), options));
}

}  // namespace bellows::parallel
