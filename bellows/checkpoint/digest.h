// Length and hash of a file's bytes, to detect damage (not a defence against an attacker). XXH3, 64
// bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bellows::checkpoint {

struct Digest {
  uint64_t bytes = 0;
  uint64_t hash = 0;
  bool operator==(const Digest&) const = default;
};

/// Takes a file's bytes piece by piece.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  void update(std::span<const std::byte> bytes);
  Digest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  uint64_t bytes_ = 0;
};

uint64_t hash_of(std::string_view bytes);
/// 16 hexadecimal digits.
std::string hash_text(uint64_t hash);

}  // namespace bellows::checkpoint
