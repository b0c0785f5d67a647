#include "bellows/data/distributed_sampler.h"

#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

std::shared_ptr<const Sampler> base_order(int64_t size, bool shuffle, uint64_t seed) {
  if (shuffle) return std::make_shared<RandomSampler>(size, seed);
  return std::make_shared<SequentialSampler>(size);
}

int64_t samples_of_rank(int64_t all, const DistributedOptions& options) {
  const int64_t ranks = options.world_size;
  switch (options.uneven) {
    case Uneven::pad:
      return (all + ranks - 1) / ranks;
    case Uneven::drop:
      return all / ranks;
    case Uneven::keep:
      return all / ranks + (options.rank < all % ranks ? 1 : 0);
  }
  throw ValueError("distributed sampler: got an unknown value of `uneven`");
}

}  // namespace

DistributedSampler::DistributedSampler(std::shared_ptr<const Sampler> order,
                                       DistributedOptions options)
    : order_(std::move(order)), options_(options) {
  if (order_ == nullptr) throw ValueError("distributed sampler: the order is null");
  if (options_.world_size < 1 || options_.rank < 0 || options_.rank >= options_.world_size) {
    throw ValueError(concat("distributed sampler: got rank ", options_.rank, " of ",
                            options_.world_size, ", expected a rank from 0 to world size - 1"));
  }
  size_ = samples_of_rank(order_->size(), options_);
}

DistributedSampler::DistributedSampler(int64_t size, DistributedOptions options, bool shuffle,
                                       uint64_t seed)
    : DistributedSampler(base_order(size, shuffle, seed), options) {}

std::vector<int64_t> DistributedSampler::global_indices(int64_t epoch) const {
  return order_->indices(epoch);
}

std::vector<int64_t> DistributedSampler::indices(int64_t epoch) const {
  const std::vector<int64_t> all = order_->indices(epoch);
  std::vector<int64_t> mine(static_cast<size_t>(size_));
  auto place = static_cast<size_t>(options_.rank);
  for (int64_t& index : mine) {
    index = all[place % all.size()];  // past the end only where padded: again from the head
    place += static_cast<size_t>(options_.world_size);
  }
  return mine;
}

}  // namespace bellows::data
