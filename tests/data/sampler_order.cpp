// For tests/python/sampler_order.py: reads lines of a sampler's name and its arguments, writes each
// order as one line.
#include <cstdint>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "bellows/data/distributed_sampler.h"
#include "bellows/data/sampler.h"

using namespace bellows::data;

namespace {

template <class T>
T take(std::istream& in) {
  T value{};
  in >> value;
  return value;
}

std::unique_ptr<Sampler> read_sampler(std::istream& in) {
  const auto name = take<std::string>(in);
  const auto size = take<int64_t>(in);
  const auto seed = take<uint64_t>(in);
  if (name == "random") return std::make_unique<RandomSampler>(size, seed);
  if (name == "loader") return std::make_unique<DataLoaderSampler>(size, seed);
  if (name == "replacement") {
    return std::make_unique<RandomSampler>(
        RandomSampler::with_replacement(size, take<int64_t>(in), seed));
  }
  if (name == "weighted") {
    const auto samples = take<int64_t>(in);
    const bool replacement = take<bool>(in);
    std::vector<double> weights;
    for (int64_t i = 0; i < size; ++i) weights.push_back(static_cast<double>(i % 5) / 2);
    return std::make_unique<WeightedRandomSampler>(weights, samples, replacement, seed);
  }
  if (name == "subset") {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < size; ++i) indices.push_back(3 * i + 1);
    return std::make_unique<SubsetSampler>(indices, seed);
  }
  const auto rank = take<int64_t>(in);
  const auto ranks = take<int64_t>(in);
  const auto uneven = take<bool>(in) ? Uneven::drop : Uneven::pad;
  const bool shuffle = take<bool>(in);
  return std::make_unique<DistributedSampler>(size, DistributedOptions{rank, ranks, uneven},
                                              shuffle, seed);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    const auto epoch = take<int64_t>(in);
    for (const int64_t index : read_sampler(in)->indices(epoch)) std::cout << index << ' ';
    std::cout << '\n';
  }
}
