// What moves the bytes of one group. Internal; no header of c10d.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/parallel/group.h"
#include "bellows/parallel/store.h"

namespace bellows::parallel {

/// Tensors are contiguous, of one dimension, not empty, and of the same size on all ranks unless
/// said otherwise. Ranks are those of the group. An operation begins when it is called and ends
/// with one call of `done`, in any thread, perhaps before it returns; the tensors live until then.
/// What only moves comes as bytes.
class Transport {
 public:
  using Done = std::function<void(std::exception_ptr error)>;
  using Tensors = std::vector<at::Tensor>;
  virtual ~Transport() = default;

  virtual void broadcast(const at::Tensor& tensor, int64_t root, Done done) = 0;
  /// Not `average`.
  virtual void all_reduce(const at::Tensor& tensor, ReduceOp op, Done done) = 0;
  virtual void reduce(const at::Tensor& tensor, int64_t root, ReduceOp op, Done done) = 0;
  virtual void all_gather(const Tensors& outputs, const at::Tensor& input, Done done) = 0;
  virtual void gather(const Tensors& outputs, const at::Tensor& input, int64_t root, Done done) = 0;
  virtual void scatter(const at::Tensor& output, const Tensors& inputs, int64_t root,
                       Done done) = 0;
  /// Splits: elements for, and from, each rank; tensors may be empty and differ in size.
  virtual void all_to_all(const at::Tensor& output, const at::Tensor& input,
                          const std::vector<int64_t>& output_splits,
                          const std::vector<int64_t>& input_splits, Done done) = 0;
  virtual void barrier(Done done) = 0;

  /// A message between two ranks.
  class Message {
   public:
    virtual ~Message() = default;
    /// Blocks; the sender's rank, or this one's own. Throws.
    virtual int64_t wait() = 0;
    /// Any thread: lets wait() return.
    virtual void abort() = 0;
  };
  virtual std::shared_ptr<Message> send(const at::Tensor& tensor, int64_t to, int tag) = 0;
  /// From any rank: -1.
  virtual std::shared_ptr<Message> receive(const at::Tensor& tensor, int64_t from, int tag) = 0;

  /// Whether it takes tensors of that device; others come as copies on the CPU.
  virtual bool takes(c10::Device device) const = 0;

  /// Any thread: what is under way holds the device no longer; nothing may be begun any more.
  virtual void abort() {}
};

/// Of one rank alone: copies.
std::unique_ptr<Transport> alone_transport();

/// Meets the others over the store, which lives as long as the transport. `loopback`: all ranks are
/// on this machine, and nothing else may connect.
std::unique_ptr<Transport> gloo_transport(const Store& store, int64_t rank, int64_t size,
                                          std::chrono::milliseconds timeout, bool loopback);

}  // namespace bellows::parallel
