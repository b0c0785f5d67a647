#include "bellows/device/sim/copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include "bellows/device/sim/cost.h"
#include "bellows/device/sim/host_view.h"
#include "bellows/device/sim/memory.h"
#include "bellows/device/sim/queue.h"
#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

bool simulated(const at::Tensor& tensor) {
  return tensor.device().type() == kType;
}

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

void copy_on_host(const at::Tensor& from, const at::Tensor& to) {
  const at::AutoDispatchBelowADInplaceOrView below;
  to.copy_(from);
}

// `queue` goes on when `other` has come to where it is now.
void wait_for(Queue& queue, Queue& other) {
  queue.charge(0, other.time());
  const uint64_t number = other.last();
  if (&queue != &other && !other.done(number))
    queue.push([&other, number] { other.run_until(number); });
}

// On the device's own queues: the source's copies, the target's waits.
void between_devices(const at::Tensor& from, const at::Tensor& to) {
  HostViews views;
  Queue& source = current_queue(from.device());
  Queue& target = current_queue(to.device());
  wait_for(source, target);
  source.push([a = views.of(from), b = views.of(to)] { copy_on_host(a, b); });
  charge_copy(source, bytes_of(to), from.device(), to.device());
  wait_for(target, source);
}

void with_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  HostViews views;
  const at::Tensor& host = simulated(from) ? to : from;
  Queue& queue = current_queue(simulated(from) ? from.device() : to.device());
  charge_copy(queue, bytes_of(to), from.device(), to.device());
  const auto pinned = non_blocking ? use_pinned(host.const_data_ptr()) : nullptr;
  if (pinned) {  // of the tensors as they are now, whatever the program does with them meanwhile
    queue.push([a = views.of(from), b = views.of(to), pinned] { copy_on_host(a, b); });
    return;
  }
  queue.synchronize();
  copy_on_host(simulated(from) ? views.of(from) : from, simulated(to) ? views.of(to) : to);
  host_reaches(queue.time());
}

// What LibTorch would refuse later, when nobody listens.
void check(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK((from.is_cpu() || simulated(from)) && (to.is_cpu() || simulated(to)),
              "simulated devices copy to and from the CPU and each other, got ", from.device(),
              " to ", to.device());
  at::assert_no_internal_overlap(to);
  if (!from.is_same(to)) at::assert_no_partial_overlap(to, from);
  if (from.sizes() != to.sizes()) from.expand(to.sizes());
}

}  // namespace

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  check(from, to);
  if (to.numel() == 0) return to;
  if (simulated(from) && simulated(to)) {
    between_devices(from, to);
  } else {
    with_host(from, to, non_blocking);
  }
  return to;
}

}  // namespace bellows::sim
