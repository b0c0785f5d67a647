#include "bellows/checkpoint/digest.h"

#include <array>
#include <cinttypes>
#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace bellows::checkpoint {

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh);
}
Hasher::~Hasher() = default;

void Hasher::update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

Digest Hasher::digest() const {
  return {.bytes = bytes_, .hash = XXH3_64bits_digest(&state_->xxh)};
}

uint64_t hash_of(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string hash_text(uint64_t hash) {
  std::array<char, 17> text = {};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, hash);
  return text.data();
}

}  // namespace bellows::checkpoint
