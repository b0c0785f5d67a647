#include "bellows/parallel/data_parallel.h"

#include <algorithm>
#include <mutex>
#include <set>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/core/thread_pool.h"
#include "bellows/device/device.h"

namespace bellows::parallel {
namespace {

using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));

std::vector<at::Tensor> values(const NamedTensors& tensors) {
  std::vector<at::Tensor> out;
  for (const auto& [name, tensor] : tensors) out.push_back(tensor);
  return out;
}

void check(const std::vector<c10::Device>& devices) {
  if (devices.empty()) throw ValueError("DataParallel: got no devices, expected at least one");
  std::set<std::string> names;
  for (const auto device : devices) {
    if (!names.insert(device_name(device)).second)
      throw ValueError(
          concat("DataParallel: got ", device_name(device), " twice, expected each device once"));
    if (device.type() != devices.front().type())
      throw ValueError(concat("DataParallel: got ", device_name(devices.front()), " and ",
                              device_name(device), ", expected devices of one kind"));
  }
}

// A tensor of the first replica and its copies.
class Copies {
 public:
  Copies(at::Tensor first, std::vector<at::Tensor> copies)
      : first_(std::move(first)), copies_(std::move(copies)) {}

  // Always: BatchNorm changes its statistics without a trace in the count of changes.
  void refresh(size_t replica) const {
    const at::Tensor& copy = copies_[replica];
    copy.variable_data().copy_(first_);
    if (copy.is_leaf() && copy.requires_grad() != first_.requires_grad())
      copy.set_requires_grad(first_.requires_grad());
  }

  // Moves the copies' gradients into the first one's.
  void reduce() {
    for (const at::Tensor& copy : copies_) {
      at::Tensor& gradient = copy.mutable_grad();
      if (!gradient.defined()) continue;
      const at::Tensor moved = gradient.to(first_.device());
      at::Tensor& sum = first_.mutable_grad();
      if (sum.defined())
        sum.add_(moved);
      else
        sum = moved;
      gradient.reset();
    }
  }

  const std::vector<at::Tensor>& copies() const { return copies_; }

 private:
  at::Tensor first_;
  std::vector<at::Tensor> copies_;
};

std::vector<Copies> pair_up(const std::vector<nn::Model>& replicas,
                            NamedTensors (nn::Model::*tensors)() const) {
  std::vector<Copies> out;
  const auto firsts = values((replicas.front().*tensors)());
  for (size_t i = 0; i < firsts.size(); ++i) {
    std::vector<at::Tensor> copies;
    for (size_t k = 1; k < replicas.size(); ++k)
      copies.push_back((replicas[k].*tensors)()[i].second);
    out.emplace_back(firsts[i], std::move(copies));
  }
  return out;
}

}  // namespace

class DataParallel::State {
 public:
  State(const nn::Model& model, std::vector<c10::Device> devices_, const Factory& factory)
      : devices(std::move(devices_)), pool_(static_cast<int>(devices.size()) - 1) {
    model.to(devices.front());
    replicas.push_back(model);
    for (size_t i = 1; i < devices.size(); ++i) {
      replicas.push_back(factory ? model.deep_copy(factory) : model.deep_copy());
      replicas.back().to(devices[i]);
    }
    parameters_ = pair_up(replicas, &nn::Model::named_parameters);
    buffers_ = pair_up(replicas, &nn::Model::named_buffers);
    for (const Copies& parameter : parameters_)
      for (const at::Tensor& copy : parameter.copies())
        if (copy.requires_grad()) watch(copy);
  }

  ~State() {
    for (const auto& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
  }

  Tree forward(const Tree& input) {
    const std::vector<Tree> parts = scatter(input, devices);
    refresh(parts.size());
    std::vector<Tree> outputs(parts.size());
    const at::ThreadLocalState thread_state;
    pool_.parallel_for(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
      const at::ThreadLocalStateGuard as_caller(thread_state);
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const c10::DeviceGuard on(devices[i]);
        outputs[i] = replicas[i].forward(parts[i]);
      }
    });
    return outputs.size() == 1 ? outputs.front() : gather(outputs, devices.front());
  }

  std::vector<c10::Device> devices;
  std::vector<nn::Model> replicas;

 private:
  void refresh(size_t used) {
    const at::NoGradGuard no_grad;
    for (size_t k = 0; k + 1 < used; ++k) {
      for (const Copies& parameter : parameters_) parameter.refresh(k);
      for (const Copies& buffer : buffers_) buffer.refresh(k);
      const nn::Model& replica = replicas[k + 1];
      if (replica.is_training() != replicas.front().is_training())
        replica.train(replicas.front().is_training());
    }
  }

  // The first gradient of a backward pass asks for the reduction at its end.
  void watch(const at::Tensor& copy) {
    const Accumulator accumulator = torch::autograd::impl::grad_accumulator(copy);
    const auto key =
        accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [this](const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>&) {
              const std::lock_guard lock(mutex_);
              if (!queued_)
                torch::autograd::Engine::get_default_engine().queue_callback([this] { reduce(); });
              queued_ = true;
              return outputs;
            }));
    hooks_.emplace_back(accumulator, key);
  }

  void reduce() {
    const std::lock_guard lock(mutex_);
    queued_ = false;
    const at::NoGradGuard no_grad;
    for (Copies& parameter : parameters_) parameter.reduce();
  }

  ThreadPool pool_;
  std::vector<Copies> parameters_, buffers_;
  std::vector<std::pair<Accumulator, uintptr_t>> hooks_;
  std::mutex mutex_;
  bool queued_ = false;
};

namespace {

class ReplicatedModel final : public nn::Model::Interface {
 public:
  explicit ReplicatedModel(std::shared_ptr<DataParallel::State> state) : state_(std::move(state)) {}
  Tree forward(const Tree& input) override { return state_->forward(input); }
  NamedTensors named_parameters() const override { return first().named_parameters(); }
  NamedTensors named_buffers() const override { return first().named_buffers(); }
  nn::Ties ties() const override { return first().ties(); }
  void train(bool on) override {
    for (const nn::Model& replica : state_->replicas) replica.train(on);
  }
  bool is_training() const override { return first().is_training(); }
  void to(c10::Device device) override {
    if (device != state_->devices.front())
      throw ValueError(concat("A model in DataParallel stays on ",
                              device_name(state_->devices.front()), ": got ", device_name(device)));
  }

 private:
  const nn::Model& first() const { return state_->replicas.front(); }
  std::shared_ptr<DataParallel::State> state_;
};

}  // namespace

DataParallel::DataParallel(nn::Model model, std::vector<c10::Device> devices,
                           const Factory& factory) {
  check(devices);
  state_ = std::make_shared<State>(model, std::move(devices), factory);
}
DataParallel::~DataParallel() = default;

Tree DataParallel::forward(const Tree& input) {
  return state_->forward(input);
}
nn::Model DataParallel::model() const {
  return nn::Model(std::make_shared<ReplicatedModel>(state_));
}
const std::vector<c10::Device>& DataParallel::devices() const {
  return state_->devices;
}

}  // namespace bellows::parallel
