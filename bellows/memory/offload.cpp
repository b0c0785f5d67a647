#include "bellows/memory/offload.h"

#include <mutex>
#include <optional>
#include <vector>

#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/device/move.h"
#include "bellows/device/stream.h"

namespace bellows::memory {
namespace {

at::Tensor empty_as(const at::Tensor& like, const at::TensorOptions& options) {
  return at::empty_strided(like.sizes(), like.strides(), options.dtype(like.scalar_type()));
}

}  // namespace

// The copies of one forward pass. Methods under its lock.
class OffloadGuard::Session {
 public:
  // One tensor in host memory; several saved tensors may be of it.
  struct Item {
    c10::weak_intrusive_ptr<c10::StorageImpl> source;
    uint32_t version;
    c10::DimVector sizes, strides;
    int64_t offset;
    at::Tensor host;
    at::Tensor back;  // on its way, or there
    std::optional<Event> arrived;
    int64_t users = 0;  // saved tensors of it that have not been asked for in this backward
    int64_t all = 0;
  };

  Session(c10::Device device, OffloadOptions options)
      : device_(device), options_(options), stream_(Stream::from_pool(device)) {}

  std::mutex mutex;
  OffloadStats stats;

  bool takes(const at::Tensor& tensor, bool parameter) const {
    return !parameter && same_device(tensor.device(), device_) && tensor.has_storage() &&
           tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense() &&
           static_cast<int64_t>(tensor.nbytes()) >= options_.least_bytes;
  }

  std::shared_ptr<Item> add(const at::Tensor& tensor) {
    for (auto it = items_.rbegin(); it != items_.rend(); ++it) {
      const auto known = it->lock();
      if (known && is_of(*known, tensor)) {
        ++known->users;
        ++known->all;
        return known;
      }
    }
    auto item = std::make_shared<Item>(Item{tensor.storage().getWeakStorageImpl(),
                                            static_cast<uint32_t>(tensor._version()),
                                            c10::DimVector(tensor.sizes()),
                                            c10::DimVector(tensor.strides()),
                                            tensor.storage_offset(),
                                            {},
                                            {},
                                            {},
                                            1,
                                            1});
    item->host = empty_as(tensor, at::TensorOptions(at::kCPU).pinned_memory(true));
    Event computed(device_);
    computed.record(Stream::current(device_));
    stream_.wait(computed);
    {
      const StreamGuard on(stream_);
      item->host.copy_(tensor, /*non_blocking=*/true);
    }
    tensor.record_stream(stream_.raw());
    ++stats.tensors;
    stats.to_host += static_cast<int64_t>(tensor.nbytes());
    items_.push_back(item);
    return item;
  }

  at::Tensor give(const std::shared_ptr<Item>& item) {
    if (item->back.defined()) {
      ++stats.prefetched;
    } else {
      fetch(*item);
    }
    const Stream now = Stream::current(device_);
    now.wait(*item->arrived);
    at::Tensor out = item->back;
    out.record_stream(now.raw());
    if (--item->users <= 0) {
      item->back.reset();
      item->users = item->all;
    }
    prefetch_before(item);
    return out;
  }

 private:
  static bool is_of(const Item& item, const at::Tensor& tensor) {
    return item.source._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
           item.version == static_cast<uint32_t>(tensor._version()) &&
           tensor.sizes() == at::IntArrayRef(item.sizes) &&
           tensor.strides() == at::IntArrayRef(item.strides) &&
           tensor.storage_offset() == item.offset &&
           tensor.scalar_type() == item.host.scalar_type();
  }

  void fetch(Item& item) {
    const StreamGuard on(stream_);
    item.back = empty_as(item.host, at::TensorOptions(device_));
    item.back.copy_(item.host, /*non_blocking=*/true);
    item.arrived.emplace(device_);
    item.arrived->record(stream_);
    stats.from_host += static_cast<int64_t>(item.host.nbytes());
  }

  // Backward asks in reverse order, more or less.
  void prefetch_before(const std::shared_ptr<Item>& item) {
    size_t place = items_.size();
    while (place > 0 && items_[place - 1].lock() != item) --place;
    int64_t wanted = options_.prefetch;
    for (size_t i = place > 0 ? place - 1 : 0; i > 0 && wanted > 0; --i) {
      const auto before = items_[i - 1].lock();
      if (!before) continue;  // its saved tensors are gone
      --wanted;
      if (!before->back.defined()) fetch(*before);
    }
  }

  const c10::Device device_;
  const OffloadOptions options_;
  const Stream stream_;
  std::vector<std::weak_ptr<Item>> items_;  // in order of saving
};

class OffloadGuard::Saved : public SavedTensor {
 public:
  explicit Saved(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  void pack(const at::Tensor& tensor, bool parameter) override {
    const std::lock_guard lock(session_->mutex);
    if (session_->takes(tensor, parameter)) {
      item_ = session_->add(tensor);
    } else {
      here_ = tensor;
    }
  }
  at::Tensor unpack() override {
    if (!item_) return here_;
    const c10::AutoGradMode no_grad(false);
    const std::lock_guard lock(session_->mutex);
    return session_->give(item_);
  }

 private:
  std::shared_ptr<Session> session_;
  std::shared_ptr<Session::Item> item_;
  at::Tensor here_;
};

OffloadGuard::OffloadGuard(c10::Device device, OffloadOptions options) {
  if (options.least_bytes < 0 || options.prefetch < 0)
    throw ValueError(concat("offload: got least_bytes ", options.least_bytes, " and prefetch ",
                            options.prefetch, ", expected 0 or more"));
  if (device.is_cpu()) {
    log::warn_once("offload: no effect on the CPU, whose tensors lie in the host's memory already");
    return;
  }
  session_ = std::make_shared<Session>(device, options);
  guard_ = std::make_unique<SavedTensorGuard>(
      [session = session_] { return std::make_unique<Saved>(session); });
}

OffloadGuard::~OffloadGuard() = default;

OffloadStats OffloadGuard::stats() const {
  if (!session_) return {};
  const std::lock_guard lock(session_->mutex);
  return session_->stats;
}

}  // namespace bellows::memory
