#include "bellows/checkpoint/digest.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace bellows::checkpoint {

struct Xxh3::State {
  XXH3_state_t xxh;
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) {
  reset();
}
Xxh3::~Xxh3() = default;

void Xxh3::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size());
}

uint64_t Xxh3::value() const {
  return XXH3_64bits_digest(&state_->xxh);
}

void Xxh3::reset() {
  XXH3_64bits_reset(&state_->xxh);
}

void Hasher::update(std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kBlockBytes - in_block_));
    block_.update(piece);
    in_block_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (in_block_ < kBlockBytes) break;
    blocks_.push_back(block_.value());
    block_.reset();
    in_block_ = 0;
  }
}

Digest Hasher::digest() const {
  std::vector<uint64_t> blocks = blocks_;
  if (in_block_ > 0) blocks.push_back(block_.value());
  return digest_of(bytes_, blocks);
}

Digest digest_of(uint64_t bytes, std::span<const uint64_t> blocks) {
  return {.bytes = bytes, .hash = XXH3_64bits(blocks.data(), blocks.size_bytes())};
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
