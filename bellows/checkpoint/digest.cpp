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
