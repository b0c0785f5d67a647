#include "bellows/parallel/exchange.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace bellows::parallel {
namespace {

using Act = std::function<void(const at::Tensor& flat)>;

// Acts on tensors of one type and device as if they were one.
void act_together(const std::vector<at::Tensor>& tensors, const Act& act) {
  if (tensors.size() == 1 && tensors.front().is_contiguous()) return act(tensors.front());
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  const at::Tensor all = at::cat(flat);
  act(all);
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(all.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

void act_in_chunks(const std::vector<at::Tensor>& tensors, int64_t chunk_bytes, const Act& act) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> chunk;
  int64_t bytes = 0;
  const auto flush = [&] {
    if (!chunk.empty()) act_together(chunk, act);
    chunk.clear();
    bytes = 0;
  };
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const auto size = static_cast<int64_t>(tensor.nbytes());
    if (!chunk.empty() && (chunk.front().scalar_type() != tensor.scalar_type() ||
                           chunk.front().device() != tensor.device() || bytes + size > chunk_bytes))
      flush();
    chunk.push_back(tensor.variable_data());
    bytes += size;
  }
  flush();
}

}  // namespace

void broadcast_tensors(const Group& group, const std::vector<at::Tensor>& tensors, int64_t src,
                       int64_t chunk_bytes) {
  if (group.size() == 1) return;
  act_in_chunks(tensors, chunk_bytes, [&](const at::Tensor& flat) { group.broadcast(flat, src); });
}

void average_tensors(const Group& group, const std::vector<at::Tensor>& tensors,
                     int64_t chunk_bytes) {
  if (group.size() == 1) return;
  act_in_chunks(tensors, chunk_bytes, [&](const at::Tensor& flat) {
    flat.div_(group.size());
    group.all_reduce(flat);
  });
}

}  // namespace bellows::parallel
