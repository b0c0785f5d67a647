// Random numbers that depend on a key alone: what is drawn for a sample is the same in whatever
// order, on whatever thread and after whatever restart it is read.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox4x32-10).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace bellows::data {

/// Ten rounds of Philox: 128 bits of counter and 64 of key to 128 random bits.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

/// The random numbers of one sample in one epoch: a function of (seed, epoch, index) alone. Epochs
/// count modulo 2^32; 2^34 numbers of 32 bits each, then they repeat. Cheap to make (40 bytes, no
/// warm-up). Not for secrets. Not thread-safe.
class Random {
 public:
  Random(uint64_t seed, int64_t epoch, int64_t index)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
        epoch_(static_cast<uint32_t>(epoch)),
        index_(static_cast<uint64_t>(index)) {}

  uint32_t bits() {
    if (used_ == 4) {
      block_ = philox4x32(
          {next_++, epoch_, static_cast<uint32_t>(index_), static_cast<uint32_t>(index_ >> 32)},
          key_);
      used_ = 0;
    }
    return block_[used_++];
  }
  /// In [0, 1), in steps of 2^-53.
  double uniform() {
    const uint64_t high = bits() >> 5;
    const uint64_t low = bits() >> 6;
    return static_cast<double>(high << 26 | low) * 0x1p-53;
  }
  /// In [low, high); low where they are equal.
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// An integer in [0, limit), limit from 1 to 2^53; uneven by less than one part in 2^53 / limit.
  int64_t below(int64_t limit) {
    return static_cast<int64_t>(uniform() * static_cast<double>(limit));
  }
  bool chance(double probability) { return uniform() < probability; }
  /// Mean 0, standard deviation 1 (Box and Muller; the second value is not kept).
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

 private:
  std::array<uint32_t, 4> block_{};
  std::array<uint32_t, 2> key_;
  uint32_t epoch_;
  uint64_t index_;
  uint32_t next_ = 0;
  int used_ = 4;
};

}  // namespace bellows::data
