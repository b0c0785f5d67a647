// Hashes of bytes, to detect damage (not a defence against an attacker). Needs no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace bellows::checkpoint {

/// What is long is hashed in blocks of this size, so that several threads can do it: its hash is
/// the XXH3 of its blocks' XXH3s.
inline constexpr size_t kBlockBytes = size_t{4} << 20;

/// What a file must be.
struct Digest {
  enum class Of {
    file,    // all bytes, in blocks
    header,  // the header of a safetensors file, which holds the checksum of each tensor
  };
  uint64_t bytes = 0;  // of the whole file
  uint64_t hash = 0;
  Of of = Of::file;
  bool operator==(const Digest&) const = default;
};

/// XXH3, 64 bits.
uint64_t hash_of(std::span<const std::byte> bytes);
uint64_t hash_of(std::string_view bytes);

/// hash_of() of bytes that come in parts.
class BlockHash {
 public:
  BlockHash();
  ~BlockHash();
  BlockHash(const BlockHash&) = delete;
  BlockHash& operator=(const BlockHash&) = delete;
  void add(std::span<const std::byte> bytes);
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// 16 hexadecimal digits, and back.
std::string hash_text(uint64_t hash);
std::optional<uint64_t> parse_hash(std::string_view text);

}  // namespace bellows::checkpoint
