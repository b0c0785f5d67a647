#include "bellows/train/recovery.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

namespace bellows::train {

StepSnapshot::StepSnapshot(const nn::Model& model) {
  for (const auto& [name, buffer] : model.named_buffers()) buffers_.push_back(buffer);
}

void StepSnapshot::take() {
  const at::NoGradGuard no_grad;
  generators_ = random_.state_dict();
  if (buffers_.empty()) return;
  if (copies_.empty() || copies_.front().device() != buffers_.front().device()) {
    copies_.clear();
    for (const at::Tensor& buffer : buffers_) copies_.push_back(at::empty_like(buffer));
  }
  at::_foreach_copy_(copies_, buffers_);
}

void StepSnapshot::restore() const {
  const at::NoGradGuard no_grad;
  RandomState(random_).load_state_dict(generators_);
  if (buffers_.empty()) return;
  std::vector<at::Tensor> buffers = buffers_;
  at::_foreach_copy_(buffers, copies_);
}

bool on_all(const parallel::Group& group, bool holds) {
  if (group.size() == 1) return holds;
  const at::Tensor vote = at::full({1}, holds ? 1 : 0, at::kLong);
  group.all_reduce(vote, parallel::ReduceOp::min);
  return vote.item<int64_t>() == 1;
}

void average_gradients(const parallel::Group& group, const NamedTensors& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad()) continue;
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    gradients.push_back(parameter.grad());
  }
  group.all_reduce_coalesced(gradients, parallel::ReduceOp::average);
}

}  // namespace bellows::train
