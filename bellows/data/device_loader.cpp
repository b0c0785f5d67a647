#include "bellows/data/device_loader.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <utility>

#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/backend.h"
#include "bellows/device/move.h"
#include "bellows/device/stream.h"

namespace bellows::data {
namespace {

class DeviceLoader : public Loader {
 public:
  DeviceLoader(std::unique_ptr<Loader> loader, c10::Device device, int64_t ahead)
      : loader_(std::move(loader)),
        device_(with_index(device)),
        ahead_(static_cast<size_t>(ahead)),
        stream_(Stream::from_pool(device_)) {}

  ~DeviceLoader() override {
    for (const Copy& copy : copies_) copy.done->synchronize();  // they read memory that goes now
  }

  int64_t batches() const override { return loader_->batches(); }
  int64_t samples() const override { return loader_->samples(); }
  int64_t batch_size() const override { return loader_->batch_size(); }
  LoaderReport report() const override { return loader_->report(); }
  int64_t epoch() const override { return next_place() ? next_place()->epoch : loader_->epoch(); }
  int64_t position() const override {
    return next_place() ? next_place()->position : loader_->position();
  }
  Tree state_dict() const override {
    return next_place() ? next_place()->state : loader_->state_dict();
  }

  void start(int64_t epoch, int64_t first_batch) override {
    loader_->start(epoch, first_batch);
    forget();
  }
  void load_state_dict(const Tree& state) override {
    loader_->load_state_dict(state);
    forget();
  }

  std::optional<Batch> next() override {
    release_copied();
    if (ready_.empty() && failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
    if (ready_.empty() && !fetch()) return std::nullopt;
    fetch_ahead();
    Ready front = std::move(ready_.front());
    ready_.pop_front();
    const Stream current = Stream::current(device_);
    current.wait(*front.copied);
    front.batch.data.for_each_tensor([&](const std::string&, const at::Tensor& tensor) {
      if (!tensor.device().is_cpu()) tensor.record_stream(current.raw());
    });
    return std::move(front.batch);
  }

 private:
  // Of the loader, before it gave a batch.
  struct Place {
    int64_t epoch;
    int64_t position;
    Tree state;
  };
  struct Ready {
    Batch batch;  // on the device once `copied` is reached
    std::shared_ptr<Event> copied;
    Place place;
  };
  // Host memory that a copy may still read.
  struct Copy {
    Tree host;
    std::shared_ptr<Event> done;
  };

  const Place* next_place() const {
    return !ready_.empty() ? &ready_.front().place : host_ ? &host_->second : nullptr;
  }

  void forget() {
    ready_.clear();
    host_.reset();
    failed_ = nullptr;
  }

  // The next ones start on their way before the program computes with this one. An error is of a
  // later batch: it comes when that one is asked for. Where the device is full, that one is tried
  // again then.
  void fetch_ahead() {
    try {
      while (!failed_ && ready_.size() <= ahead_ && fetch()) {
      }
    } catch (const c10::OutOfMemoryError&) {
    } catch (...) {
      failed_ = std::current_exception();
    }
  }

  bool fetch() {
    if (!host_) {
      Place place{loader_->epoch(), loader_->position(), loader_->state_dict()};
      auto batch = loader_->next();
      if (!batch) return false;
      host_.emplace(std::move(*batch), std::move(place));
    }
    Batch& host = host_->first;
    const StreamGuard on(stream_);
    Batch there{bellows::to(host.data, device_, /*non_blocking=*/true), host.samples};
    auto copied = std::make_shared<Event>(device_);
    copied->record(stream_);
    copies_.push_back({std::move(host.data), copied});
    ready_.push_back({std::move(there), std::move(copied), std::move(host_->second)});
    host_.reset();
    return true;
  }

  void release_copied() {
    while (!copies_.empty() && copies_.front().done->query()) copies_.pop_front();
  }

  std::unique_ptr<Loader> loader_;
  c10::Device device_;
  size_t ahead_;
  Stream stream_;
  std::deque<Ready> ready_;                      // the next ones to be handed out
  std::optional<std::pair<Batch, Place>> host_;  // the one after them, not on its way yet
  std::exception_ptr failed_;                    // in the place of the one after them
  std::deque<Copy> copies_;                      // in the order of the stream
};

}  // namespace

std::unique_ptr<Loader> to_device(std::unique_ptr<Loader> loader, c10::Device device,
                                  DeviceLoaderOptions options) {
  if (loader == nullptr) throw ValueError("loader for a device: the loader is null");
  if (options.ahead < 1)
    throw ValueError(
        concat("loader for a device: got ahead ", options.ahead, ", expected at least 1"));
  if (!is_accelerator(device)) return loader;
  return std::make_unique<DeviceLoader>(std::move(loader), device, options.ahead);
}

}  // namespace bellows::data
