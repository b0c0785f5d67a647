#include "bellows/data/sampler.h"

#include <numeric>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randperm.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

int64_t checked_size(int64_t size) {
  if (size < 0) throw ValueError(concat("sampler: got size ", size, ", expected 0 or more"));
  return size;
}

void check_epoch(int64_t epoch) {
  if (epoch < 0) throw ValueError(concat("sampler: got epoch ", epoch, ", expected 0 or more"));
}

}  // namespace

SequentialSampler::SequentialSampler(int64_t size) : size_(checked_size(size)) {}

std::vector<int64_t> SequentialSampler::indices(int64_t epoch) const {
  check_epoch(epoch);
  std::vector<int64_t> order(static_cast<size_t>(size_));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

RandomSampler::RandomSampler(int64_t size, uint64_t seed)
    : size_(checked_size(size)), seed_(seed) {}

std::vector<int64_t> RandomSampler::indices(int64_t epoch) const {
  check_epoch(epoch);
  std::vector<int64_t> order(static_cast<size_t>(size_));
  at::Tensor out = at::from_blob(order.data(), {size_}, at::kLong);
  const auto generator =
      at::make_generator<at::CPUGeneratorImpl>(seed_ + static_cast<uint64_t>(epoch));
  at::randperm_out(out, size_, generator);
  return order;
}

}  // namespace bellows::data
