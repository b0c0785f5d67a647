// Tells orders apart, no more.
#pragma once

#include <cstdint>
#include <span>

namespace bellows::data {

/// FNV-1a over whole indices.
inline uint64_t hash_order(std::span<const int64_t> order, uint64_t hash = 0xcbf29ce484222325u) {
  for (const int64_t index : order) hash = (hash ^ static_cast<uint64_t>(index)) * 0x100000001b3u;
  return hash;
}

}  // namespace bellows::data
