// Length and hash of a file's bytes, to detect damage (not a defence against an attacker). The hash
// is the XXH3 (64 bits) of the XXH3s of its blocks, so that blocks can be hashed at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::checkpoint {

inline constexpr size_t kBlockBytes = size_t{4} << 20;

struct Digest {
  uint64_t bytes = 0;
  uint64_t hash = 0;
  bool operator==(const Digest&) const = default;
};

/// XXH3 of bytes that come piece by piece.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  void update(std::span<const std::byte> bytes);
  uint64_t value() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The digest of a file whose bytes come in order.
class Hasher {
 public:
  void update(std::span<const std::byte> bytes);
  Digest digest() const;

 private:
  Xxh3 block_;
  size_t in_block_ = 0;
  uint64_t bytes_ = 0;
  std::vector<uint64_t> blocks_;
};

/// The digest of a file of `bytes` from the hashes of its blocks.
Digest digest_of(uint64_t bytes, std::span<const uint64_t> blocks);

uint64_t hash_of(std::string_view bytes);
/// 16 hexadecimal digits.
std::string hash_text(uint64_t hash);

}  // namespace bellows::checkpoint
