#include <algorithm>
#include <numeric>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/batch_sampler.h"
#include "bellows/data/order_hash.h"
#include "bellows/data/random.h"

namespace bellows::data {
namespace {

void check(std::span<const int64_t> lengths, const LengthBucketOptions& options) {
  const auto fail = [](const auto&... what) {
    throw ValueError(concat("length buckets: ", what...));
  };
  if (lengths.empty()) fail("got no lengths, expected one for each sample");
  if (options.batch_size < 1) fail("got batch size ", options.batch_size, ", expected at least 1");
  if (options.max_elements < 0) fail("got ", options.max_elements, " elements, expected 0 or more");
  if (options.bucket_batches < 1) {
    fail("got ", options.bucket_batches, " batches in a bucket, expected at least 1");
  }
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    fail("got rank ", options.rank, " of ", options.world_size,
         ", expected a rank from 0 to world size - 1");
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0) fail("sample ", i, " has length ", lengths[i], ", expected 0 or more");
    if (options.max_elements > 0 && lengths[i] > options.max_elements) {
      fail("sample ", i, " has length ", lengths[i], ", expected at most max_elements, ",
           options.max_elements);
    }
  }
}

// Fisher and Yates.
template <class Values>
void shuffle(Values values, Random& random) {
  for (auto left = static_cast<int64_t>(values.size()); left > 1; --left)
    std::swap(values[static_cast<size_t>(left - 1)],
              values[static_cast<size_t>(random.below(left))]);
}

}  // namespace

LengthBuckets::LengthBuckets(std::span<const int64_t> lengths, LengthBucketOptions options)
    : options_(options) {
  check(lengths, options_);
  const auto count = static_cast<int64_t>(lengths.size());
  sorted_.resize(lengths.size());
  std::iota(sorted_.begin(), sorted_.end(), int64_t{0});
  std::stable_sort(sorted_.begin(), sorted_.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] < lengths[static_cast<size_t>(b)];
  });
  const auto length_at = [&](int64_t place) {
    return std::max<int64_t>(1, lengths[static_cast<size_t>(sorted_[static_cast<size_t>(place)])]);
  };
  // The longest bucket first, so that its last sample, which decides the size of its batches, is
  // known.
  for (int64_t end = count; end > 0;) {
    int64_t batch = options_.batch_size;
    if (options_.max_elements > 0)
      batch = std::min(batch, options_.max_elements / length_at(end - 1));
    const int64_t global = batch * options_.world_size;
    const int64_t begin = std::max<int64_t>(0, end - global * options_.bucket_batches);
    buckets_.push_back({begin, end, global});
    for (int64_t place = begin; place < end; place += global) {
      ++batches_;
      const int64_t size = std::min(global, end - place);
      samples_ += (size + options_.world_size - 1) / options_.world_size;
    }
    end = begin;
  }
  std::reverse(buckets_.begin(), buckets_.end());
}

BatchList LengthBuckets::global_batches(int64_t epoch) const {
  if (epoch < 0) throw ValueError(concat("sampler: got epoch ", epoch, ", expected 0 or more"));
  std::vector<int64_t> order = sorted_;
  std::vector<std::pair<int64_t, int64_t>> cuts;
  Random random(options_.seed, epoch, 0);
  for (const Bucket& bucket : buckets_) {
    const auto samples = std::span(order).subspan(static_cast<size_t>(bucket.begin),
                                                  static_cast<size_t>(bucket.end - bucket.begin));
    if (options_.shuffle) shuffle(samples, random);
    for (int64_t begin = bucket.begin; begin < bucket.end; begin += bucket.global_batch)
      cuts.emplace_back(begin, std::min(begin + bucket.global_batch, bucket.end));
  }
  if (options_.shuffle) shuffle(std::span(cuts), random);
  BatchList list;
  for (const auto& [begin, end] : cuts) {
    list.indices.insert(list.indices.end(), order.begin() + begin, order.begin() + end);
    list.ends.push_back(static_cast<int64_t>(list.indices.size()));
  }
  return list;
}

BatchList LengthBuckets::batches(int64_t epoch) const {
  BatchList all = global_batches(epoch);
  if (options_.world_size == 1) return all;
  BatchList mine;
  for (int64_t b = 0; b < all.size(); ++b) {
    const auto batch = all[b];
    const auto size = static_cast<int64_t>(batch.size());
    const int64_t share = (size + options_.world_size - 1) / options_.world_size;
    for (int64_t i = 0; i < share; ++i) {
      const int64_t place = (options_.rank + i * options_.world_size) % size;
      mine.indices.push_back(batch[static_cast<size_t>(place)]);
    }
    mine.ends.push_back(static_cast<int64_t>(mine.indices.size()));
  }
  return mine;
}

uint64_t LengthBuckets::order_hash(int64_t epoch) const {
  const BatchList all = global_batches(epoch);
  return hash_order(all.ends, hash_order(all.indices));
}

}  // namespace bellows::data
