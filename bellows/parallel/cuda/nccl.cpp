// The only source that sees ProcessGroupNCCL and NCCL's own header; part of libbellows_cuda.
#define USE_C10D_NCCL 1
#include "bellows/parallel/nccl.h"

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <nccl.h>
#include <thread>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/parallel/c10d_store.h"
#include "bellows/parallel/flat.h"

// Another NCCL's header has options of another size, and would compile without a word.
static_assert(NCCL_VERSION_CODE == BELLOWS_NCCL_VERSION,
              "nccl.h is of another version than the one that CMake found beside LibTorch");

namespace bellows::parallel {
namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;
using Tensors = Transport::Tensors;
using namespace std::chrono_literals;

c10d::ReduceOp::RedOpType nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    default:
      throw ValueError(concat(op_name(op),
                              " of tensors on a CUDA device: NCCL has sum, product, min and max; "
                              "reduce a copy on the CPU"));
  }
}

std::string version_text(int code) {
  return concat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

void check_version() {
  int loaded = 0;
  if (ncclGetVersion(&loaded) == ncclSuccess && loaded == NCCL_VERSION_CODE) return;
  throw EnvironmentError(concat("the NCCL that was loaded is ", version_text(loaded),
                                ", Bellows was built for ", version_text(NCCL_VERSION_CODE),
                                "; take the one that LibTorch was installed with (look at "
                                "LD_LIBRARY_PATH and LD_PRELOAD)"));
}

/// Tells when the device is done with works: NCCL's own futures tell when they were enqueued.
class Watcher {
 public:
  explicit Watcher(c10::Device device) : device_(device), thread_([this] { run(); }) {}
  ~Watcher() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  void follow(WorkPointer work, Transport::Done done) {
    {
      const std::lock_guard lock(mutex_);
      works_.push_back({std::move(work), std::move(done)});
    }
    changed_.notify_all();
  }

 private:
  struct Followed {
    WorkPointer work;
    Transport::Done done;
  };

  void run() {
    const c10::DeviceGuard guard(device_);
    std::chrono::microseconds pause = kShortest;
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return ended_ || !works_.empty(); });
      if (ended_) return;
      Followed first = works_.front();  // they end in the order in which they began
      lock.unlock();
      if (completed(*first.work)) {
        pause = kShortest;
        first.done(first.work->exception());
        lock.lock();
        works_.pop_front();
        continue;
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongest);
      lock.lock();
    }
  }
  static bool completed(c10d::Work& work) {
    try {
      return work.isCompleted();
    } catch (...) {
      return true;  // the work holds the exception
    }
  }

  static constexpr std::chrono::microseconds kShortest = 10us, kLongest = 500us;
  const c10::Device device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Followed> works_;
  bool ended_ = false;
  std::thread thread_;
};

class NcclMessage : public Transport::Message {
 public:
  NcclMessage(WorkPointer work, int64_t rank) : work_(std::move(work)), rank_(rank) {}
  int64_t wait() override {
    for (auto pause = 10us; !work_->isCompleted(); pause = std::min(2 * pause, 500us)) {
      if (aborted_) throw Error("aborted");
      std::this_thread::sleep_for(pause);
    }
    if (const auto error = work_->exception()) std::rethrow_exception(error);
    return rank_;
  }
  void abort() override { aborted_ = true; }

 private:
  WorkPointer work_;
  int64_t rank_;
  std::atomic<bool> aborted_ = false;
};

class Nccl : public Transport {
 public:
  Nccl(c10::intrusive_ptr<c10d::ProcessGroupNCCL> group, c10::Device device)
      : group_(std::move(group)), device_(device), watcher_(device) {}

  void broadcast(const at::Tensor& tensor, int64_t root, Done done) override {
    Tensors tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    watcher_.follow(group_->broadcast(tensors, options), std::move(done));
  }
  void all_reduce(const at::Tensor& tensor, ReduceOp op, Done done) override {
    Tensors tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = nccl_op(op);
    watcher_.follow(group_->allreduce(tensors, options), std::move(done));
  }
  void reduce(const at::Tensor& tensor, int64_t root, ReduceOp op, Done done) override {
    Tensors tensors{tensor};
    c10d::ReduceOptions options;
    options.reduceOp = nccl_op(op);
    options.rootRank = root;
    watcher_.follow(group_->reduce(tensors, options), std::move(done));
  }
  void all_gather(const Tensors& outputs, const at::Tensor& input, Done done) override {
    std::vector<Tensors> lists{outputs};
    Tensors inputs{input};
    watcher_.follow(group_->allgather(lists, inputs), std::move(done));
  }
  void gather(const Tensors& outputs, const at::Tensor& input, int64_t root, Done done) override {
    std::vector<Tensors> lists;
    if (!outputs.empty()) lists.push_back(outputs);
    Tensors inputs{input};
    c10d::GatherOptions options;
    options.rootRank = root;
    watcher_.follow(group_->gather(lists, inputs, options), std::move(done));
  }
  void scatter(const at::Tensor& output, const Tensors& inputs, int64_t root, Done done) override {
    std::vector<Tensors> lists;
    if (!inputs.empty()) lists.push_back(inputs);
    Tensors outputs{output};
    c10d::ScatterOptions options;
    options.rootRank = root;
    watcher_.follow(group_->scatter(outputs, lists, options), std::move(done));
  }
  void all_to_all(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<int64_t>& output_splits,
                  const std::vector<int64_t>& input_splits, Done done) override {
    at::Tensor to = output, from = input;
    auto to_splits = output_splits, from_splits = input_splits;
    watcher_.follow(group_->alltoall_base(to, from, to_splits, from_splits), std::move(done));
  }
  void barrier(Done done) override {
    c10d::BarrierOptions options;
    options.device = device_;
    watcher_.follow(group_->barrier(options), std::move(done));
  }
  std::shared_ptr<Message> send(const at::Tensor& tensor, int64_t to, int tag) override {
    Tensors tensors{tensor};
    return std::make_shared<NcclMessage>(group_->send(tensors, static_cast<int>(to), tag),
                                         group_->getRank());
  }
  std::shared_ptr<Message> receive(const at::Tensor& tensor, int64_t from, int tag) override {
    if (from < 0) {
      throw ValueError(
          "recv from any rank into a tensor on a CUDA device: NCCL cannot do that; "
          "name the rank, or receive into a tensor on the CPU");
    }
    Tensors tensors{tensor};
    return std::make_shared<NcclMessage>(group_->recv(tensors, static_cast<int>(from), tag), from);
  }
  bool takes(c10::Device device) const override { return device == device_; }
  void abort() override { group_->abort(); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  const c10::Device device_;
  Watcher watcher_;  // ends first
};

}  // namespace
}  // namespace bellows::parallel

extern "C" __attribute__((visibility("default"))) bellows::parallel::Transport*
bellows_nccl_transport(const bellows::parallel::NcclArguments& arguments) {
  using namespace bellows::parallel;
  check_version();
  // A call that fails is ended by the group, which knows who is at fault; c10d's own way is to end
  // the process.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/1);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = arguments.timeout;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10d_store(arguments.store), static_cast<int>(arguments.rank),
      static_cast<int>(arguments.size), std::move(options));
  group->setBoundDeviceId(arguments.device);
  return std::make_unique<Nccl>(std::move(group), arguments.device).release();
}

extern "C" __attribute__((visibility("default"))) void bellows_cuda_pci_address(int device,
                                                                                char* text) {
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(text, 32, device));
}
