#include "bellows/data/prefetch_loader.h"

#include <utility>

namespace bellows::data {

Batch PrefetchLoader::Readers::read(std::span<const int64_t> indices) {
  const auto size = static_cast<int64_t>(indices.size());
  std::unique_ptr<Dataset> own;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      own = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!own) own = shared_->for_worker();
  if (!own) return {shared_->get_batch(indices), size};
  Batch batch{own->get_batch(indices), size};  // a reader that has thrown is not used again
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(own));
  return batch;
}

PrefetchLoader::PrefetchLoader(std::shared_ptr<const Dataset> dataset, BatchPlan plan,
                               int64_t workers)
    : readers_(std::move(dataset)),
      plan_(std::move(plan)),
      depth_(static_cast<size_t>(2 * workers)),
      pool_(static_cast<int>(workers)) {}

PrefetchLoader::~PrefetchLoader() {
  drop_prepared();
}

void PrefetchLoader::fill() {
  int64_t next = plan_.position() + static_cast<int64_t>(prepared_.size());
  for (; next < plan_.batches() && prepared_.size() < depth_; ++next) {
    const auto indices = plan_.batch(next);
    prepared_.push_back(pool_.submit([this, indices] { return readers_.read(indices); }));
  }
}

void PrefetchLoader::drop_prepared() {
  for (auto& batch : prepared_) batch.wait();  // they read the order that is about to change
  prepared_.clear();
}

std::optional<Batch> PrefetchLoader::next() {
  if (plan_.position() == plan_.batches()) return std::nullopt;
  fill();
  try {
    auto front = std::move(prepared_.front());
    prepared_.pop_front();
    Batch batch = front.get();
    plan_.advance();
    fill();
    return batch;
  } catch (...) {
    drop_prepared();  // prepared anew when the call is repeated
    throw;
  }
}

void PrefetchLoader::start(int64_t epoch, int64_t first_batch) {
  drop_prepared();
  plan_.go_to(epoch, first_batch);
}

void PrefetchLoader::load_state_dict(const Tree& state) {
  drop_prepared();
  plan_.load_state_dict(state);
}

}  // namespace bellows::data
