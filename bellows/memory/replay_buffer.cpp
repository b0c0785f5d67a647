#include "bellows/memory/replay_buffer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randint.h>
#include <c10/core/GradMode.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::memory {
namespace {

NamedTensors tensors_of(const Tree& tree) {
  NamedTensors out;
  tree.for_each_tensor([&](const std::string& path, const at::Tensor& tensor) {
    out.emplace_back(path.empty() ? "the sample" : path, tensor);
  });
  return out;
}

std::string describe(const at::Tensor& tensor, int64_t from) {
  return concat(c10::toString(tensor.scalar_type()), " ", tensor.sizes().slice(from));
}

}  // namespace

ReplayBuffer::ReplayBuffer(int64_t capacity, c10::Device device)
    : capacity_(capacity), device_(device) {
  if (capacity < 1)
    throw ValueError(concat("replay buffer: capacity: got ", capacity, ", expected 1 or more"));
}

void ReplayBuffer::check(const Tree& sample) const {
  const NamedTensors own = tensors_of(data_), got = tensors_of(sample);
  if (own.size() != got.size())
    throw ValueError(concat("replay buffer: got a sample of ", got.size(), " tensors, expected ",
                            own.size(), " as in the first"));
  for (size_t i = 0; i < own.size(); ++i) {
    const bool same = own[i].first == got[i].first &&
                      own[i].second.sizes().slice(1) == got[i].second.sizes() &&
                      own[i].second.scalar_type() == got[i].second.scalar_type();
    if (!same)
      throw ValueError(concat("replay buffer: ", got[i].first, ": got ", describe(got[i].second, 0),
                              ", expected ", own[i].first, ": ", describe(own[i].second, 1),
                              " as in the first sample"));
  }
}

void ReplayBuffer::push(const Tree& sample) {
  const c10::AutoGradMode no_grad(false);
  if (data_.empty()) {
    if (tensors_of(sample).empty())
      throw ValueError("replay buffer: got a sample without tensors, expected one with some");
    data_ = sample.map([&](const at::Tensor& tensor) {
      std::vector<int64_t> sizes = tensor.sizes().vec();
      sizes.insert(sizes.begin(), capacity_);
      return at::empty(sizes, at::device(device_).dtype(tensor.scalar_type()));
    });
  }
  check(sample);
  const NamedTensors own = tensors_of(data_), got = tensors_of(sample);
  for (size_t i = 0; i < own.size(); ++i) own[i].second.select(0, next_).copy_(got[i].second);
  next_ = (next_ + 1) % capacity_;
  size_ = std::min(size_ + 1, capacity_);
}

Tree ReplayBuffer::sample(int64_t count, const std::optional<at::Generator>& generator) const {
  if (size_ == 0) throw ValueError("replay buffer: it is empty; push samples first");
  if (count < 1)
    throw ValueError(concat("replay buffer: sample: got ", count, ", expected 1 or more"));
  const at::Tensor places =
      at::randint(size_, {count}, generator, at::TensorOptions(at::kLong)).to(device_);
  return data_.map([&](const at::Tensor& all) { return at::index_select(all, 0, places); });
}

Tree ReplayBuffer::state_dict() const {
  return Tree::Dict{{"data", data_}, {"size", size_}, {"next", next_}, {"capacity", capacity_}};
}

void ReplayBuffer::load_state_dict(const Tree& state) {
  const int64_t size = state.at("size").integer(), next = state.at("next").integer(),
                capacity = state.at("capacity").integer();
  if (capacity != capacity_)
    throw ValueError(concat("replay buffer: got the state of one with capacity ", capacity,
                            ", expected ", capacity_));
  if (size < 0 || size > capacity || next < 0 || next >= capacity)
    throw ValueError(concat("replay buffer: got a state of size ", size, " and next ", next,
                            ", expected them within ", capacity));
  const c10::AutoGradMode no_grad(false);
  data_ = state.at("data").map([&](const at::Tensor& tensor) {
    return tensor.to(device_, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  });
  size_ = size;
  next_ = next;
}

}  // namespace bellows::memory
