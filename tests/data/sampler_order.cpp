// For tests/python/sampler_order.py: reads lines "size seed epoch", writes each order as one line.
#include <cstdint>
#include <iostream>

#include "bellows/data/sampler.h"

int main() {
  int64_t size = 0;
  uint64_t seed = 0;
  int64_t epoch = 0;
  while (std::cin >> size >> seed >> epoch) {
    for (const int64_t index : bellows::data::RandomSampler(size, seed).indices(epoch)) {
      std::cout << index << ' ';
    }
    std::cout << '\n';
  }
}
