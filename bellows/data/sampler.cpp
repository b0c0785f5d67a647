#include "bellows/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/single_thread.h"

namespace bellows::data {
namespace {

int64_t checked_size(int64_t size) {
  if (size < 0) throw ValueError(concat("sampler: got size ", size, ", expected 0 or more"));
  return size;
}

int64_t checked_samples(int64_t samples) {
  if (samples < 0)
    throw ValueError(concat("sampler: got ", samples, " samples an epoch, expected 0 or more"));
  return samples;
}

void check_epoch(int64_t epoch) {
  if (epoch < 0) throw ValueError(concat("sampler: got epoch ", epoch, ", expected 0 or more"));
}

at::Generator generator_of(uint64_t seed, int64_t epoch) {
  return at::make_generator<at::CPUGeneratorImpl>(seed + static_cast<uint64_t>(epoch));
}

at::Tensor tensor_over(std::vector<int64_t>& order) {
  return at::from_blob(order.data(), {static_cast<int64_t>(order.size())}, at::kLong);
}

std::vector<int64_t> permutation(int64_t size, const at::Generator& generator) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  at::Tensor out = tensor_over(order);
  const SingleThreadOfLibtorch alone;  // it fills the range by threads, then draws by one
  at::randperm_out(out, size, generator);
  return order;
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
    : size_(checked_size(size)), samples_(size), seed_(seed) {}

RandomSampler RandomSampler::with_replacement(int64_t size, int64_t samples, uint64_t seed) {
  RandomSampler sampler(size, seed);
  sampler.samples_ = checked_samples(samples);
  sampler.replacement_ = true;
  if (size == 0 && samples > 0)
    throw ValueError(
        concat("sampler: got size 0, expected at least 1 to draw ", samples, " samples from"));
  return sampler;
}

std::vector<int64_t> RandomSampler::indices(int64_t epoch) const {
  check_epoch(epoch);
  const auto generator = generator_of(seed_, epoch);
  if (!replacement_) return permutation(size_, generator);
  constexpr int64_t kPiece = 32;  // PyTorch's; it decides which numbers come
  std::vector<int64_t> order(static_cast<size_t>(samples_));
  const at::Tensor all = tensor_over(order);
  for (int64_t done = 0; done < samples_; done += kPiece) {
    const int64_t count = std::min(kPiece, samples_ - done);
    at::Tensor piece = all.narrow(0, done, count);
    at::randint_out(piece, size_, {count}, generator);
  }
  return order;
}

DataLoaderSampler::DataLoaderSampler(int64_t size, uint64_t seed)
    : size_(checked_size(size)), seed_(seed) {}

std::vector<int64_t> DataLoaderSampler::indices(int64_t epoch) const {
  check_epoch(epoch);
  const auto generator = generator_of(seed_, 0);
  at::Tensor worker_seed = at::empty({}, at::kLong);
  for (int64_t before = 0; before < epoch; ++before) {
    worker_seed.random_(generator);
    permutation(size_, generator);
    permutation(size_, generator);  // of which Python takes num_samples % size, that is none
  }
  worker_seed.random_(generator);
  return permutation(size_, generator);
}

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, int64_t samples,
                                             bool replacement, uint64_t seed)
    : weights_(std::move(weights)),
      samples_(checked_samples(samples)),
      replacement_(replacement),
      seed_(seed) {
  constexpr size_t kMost = 1 << 24;
  if (weights_.empty() || weights_.size() > kMost) {
    throw ValueError(concat("sampler: got ", weights_.size(), " weights, expected 1 to ", kMost));
  }
  const auto bad = std::find_if(weights_.begin(), weights_.end(),
                                [](double weight) { return !std::isfinite(weight) || weight < 0; });
  if (bad != weights_.end()) {
    throw ValueError(concat("sampler: weight ", bad - weights_.begin(), " is ", *bad,
                            ", expected a finite number of 0 or more"));
  }
  const auto positive =
      std::count_if(weights_.begin(), weights_.end(), [](double weight) { return weight > 0; });
  if (positive == 0) throw ValueError("sampler: all weights are 0, expected one above 0");
  if (!replacement_ && samples_ > positive) {
    throw ValueError(concat("sampler: got ", samples_, " samples to draw without replacement from ",
                            positive, " weights above 0"));
  }
}

std::vector<int64_t> WeightedRandomSampler::indices(int64_t epoch) const {
  check_epoch(epoch);
  std::vector<int64_t> order(static_cast<size_t>(samples_));
  if (samples_ == 0) return order;
  const at::Tensor weights = at::from_blob(const_cast<double*>(weights_.data()),
                                           {static_cast<int64_t>(weights_.size())}, at::kDouble);
  at::Tensor out = tensor_over(order);
  at::multinomial_out(out, weights, samples_, replacement_, generator_of(seed_, epoch));
  return order;
}

std::vector<int64_t> SubsetSampler::indices(int64_t epoch) const {
  check_epoch(epoch);
  if (!shuffle_) return subset_;
  std::vector<int64_t> order = permutation(size(), generator_of(seed_, epoch));
  for (int64_t& index : order) index = subset_[static_cast<size_t>(index)];
  return order;
}

}  // namespace bellows::data
