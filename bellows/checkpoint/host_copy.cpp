#include "bellows/checkpoint/host_copy.h"

#include <algorithm>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "bellows/device/stream.h"

namespace bellows::checkpoint {
namespace {

// A stretch of memory to be copied.
struct Piece {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};
constexpr size_t kPieceBytes = size_t{8} << 20;

// Whether the bytes in memory are the values, in order.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

at::Tensor HostCopy::slot(size_t number, const at::Tensor& like) {
  if (number == slots_.size()) slots_.emplace_back();
  Slot& slot = slots_[number];
  const bool pinned = !like.is_cpu();
  if (!slot.tensor.defined() || slot.tensor.scalar_type() != like.scalar_type() ||
      slot.tensor.sizes() != like.sizes() || slot.pinned != pinned) {
    slot.tensor = at::Tensor();  // first: at most one copy of everything is held
    slot.tensor =
        at::empty(like.sizes(), at::TensorOptions(like.scalar_type()).pinned_memory(pinned));
    slot.pinned = pinned;
  }
  return slot.tensor;
}

void HostCopy::copy_on_host(const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs) {
  std::vector<Piece> pieces;
  for (const auto& [to, from] : pairs) {
    auto* target = static_cast<std::byte*>(to.data_ptr());
    const auto* source = static_cast<const std::byte*>(from.const_data_ptr());
    for (size_t done = 0; done < to.nbytes(); done += kPieceBytes) {
      pieces.push_back({target + done, source + done, std::min(kPieceBytes, to.nbytes() - done)});
    }
  }
  if (helpers_ == nullptr) {
    helpers_ = std::make_unique<ThreadPool>(std::clamp(at::get_num_threads() - 1, 0, 7));
  }
  helpers_->parallel_for(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
    }
  });
}

void HostCopy::take(Contents& contents) {
  size_t number = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> on_host;
  std::vector<c10::Device> devices;
  for (auto& [name, part] : contents) {
    for (auto& [key, tensor] : part.tensors) {
      const at::Tensor source = tensor.detach();
      const at::Tensor copy = slot(number++, source);
      if (source.is_cpu() && is_plain(source)) {
        on_host.emplace_back(copy, source);
      } else {
        copy.copy_(source, /*non_blocking=*/true);
        if (std::ranges::find(devices, source.device()) == devices.end()) {
          devices.push_back(source.device());
        }
      }
      tensor = copy;
    }
  }
  slots_.resize(number);
  copy_on_host(on_host);
  for (const c10::Device& device : devices) Stream::current(device).synchronize();
}

}  // namespace bellows::checkpoint
