#include "bellows/checkpoint/digest.h"

#include <array>
#include <charconv>
#include <cinttypes>
#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace bellows::checkpoint {

uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t hash_of(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

struct BlockHash::State {
  XXH3_state_t state;
};

BlockHash::BlockHash() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->state);
}
BlockHash::~BlockHash() = default;

void BlockHash::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->state, bytes.data(), bytes.size());
}

uint64_t BlockHash::value() const {
  return XXH3_64bits_digest(&state_->state);
}

std::string hash_text(uint64_t hash) {
  std::array<char, 17> text = {};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, hash);
  return text.data();
}

std::optional<uint64_t> parse_hash(std::string_view text) {
  uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return hash;
}

}  // namespace bellows::checkpoint
