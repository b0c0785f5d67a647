// Files damaged at random: each must be read, or refused by an error that names it.
#pragma once

#include <algorithm>
#include <functional>
#include <gmock/gmock.h>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/data/support.h"

namespace bellows::data::test {

struct DamageCounts {
  int read = 0;
  int refused = 0;
};

/// Writes `good` with bytes changed, cut off, added or doubled, `rounds` times, and calls `read`
/// with the path. Half of the changed bytes lie in the first `header` bytes, where decisions are
/// made. Any exception but an EnvironmentError that begins with the path fails the test.
inline DamageCounts read_damaged(const std::string& good, size_t header, int rounds,
                                 const std::function<void(const std::filesystem::path&)>& read) {
  TemporaryFolder folder;
  std::mt19937 random(20);
  const auto below = [&](size_t limit) { return random() % limit; };
  DamageCounts counts;
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = good;
    if (below(3) == 0) bytes.resize(below(bytes.size() + 8));
    if (below(6) == 0 && bytes.size() > 1) {
      const size_t begin = below(bytes.size());
      bytes.insert(begin, bytes.substr(begin, below(64)));
    }
    for (size_t flips = below(4); flips > 0 && !bytes.empty(); --flips) {
      const size_t range = below(2) == 0 ? std::min(bytes.size(), header) : bytes.size();
      bytes[below(range)] = static_cast<char>(random());
    }
    const auto path = folder.write("file", bytes);
    try {
      read(path);
      ++counts.read;
    } catch (const EnvironmentError& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith(path.string()));
      ++counts.refused;
    }
  }
  return counts;
}

}  // namespace bellows::data::test
