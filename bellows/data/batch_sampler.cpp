#include "bellows/data/batch_sampler.h"

#include <algorithm>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/order_hash.h"

namespace bellows::data {

SequentialBatches::SequentialBatches(std::shared_ptr<const Sampler> sampler, int64_t batch_size,
                                     bool drop_last)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
  if (sampler_ == nullptr) throw ValueError("loader: the sampler is null");
  if (batch_size_ < 1)
    throw ValueError(concat("loader: got batch size ", batch_size_, ", expected at least 1"));
  if (sampler_->size() == 0 && sampler_->world_size() == 1)
    throw ValueError("loader: the sampler has size 0, so an epoch would have no batch");
  if (size() == 0 && sampler_->size() > 0) {
    throw ValueError(concat("loader: an epoch would have no batch: ", sampler_->size(),
                            " samples do not fill one batch of ", batch_size_,
                            " and drop_last is on; lower the batch size or switch drop_last off"));
  }
}

int64_t SequentialBatches::size() const {
  const int64_t whole = sampler_->size() / batch_size_;
  return whole + (!drop_last_ && sampler_->size() % batch_size_ != 0 ? 1 : 0);
}

int64_t SequentialBatches::samples() const {
  return drop_last_ ? size() * batch_size_ : sampler_->size();
}

BatchList SequentialBatches::batches(int64_t epoch) const {
  BatchList list{sampler_->indices(epoch), {}};
  const auto count = static_cast<int64_t>(list.indices.size());
  if (count != sampler_->size()) {
    throw ValueError(concat("loader: the sampler gave ", count, " indices for epoch ", epoch,
                            ", expected its size, ", sampler_->size()));
  }
  list.ends.reserve(static_cast<size_t>(size()));
  for (int64_t batch = 1; batch <= size(); ++batch)
    list.ends.push_back(std::min(batch * batch_size_, count));
  return list;
}

uint64_t SequentialBatches::order_hash(int64_t epoch) const {
  return hash_order(sampler_->global_indices(epoch));
}

Tree::Dict SequentialBatches::settings() const {
  return {{"drop_last", drop_last_}, {"sampler_size", sampler_->global_size()}};
}

}  // namespace bellows::data
