#include "bellows/train/events/records.h"

#include <array>
#include <bit>
#include <cstring>

namespace bellows::events {
namespace {

static_assert(std::endian::native == std::endian::little,
              "record lengths are written as they lie in memory");

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0u);
    table[byte] = crc;
  }
  return table;
}();

/// TFRecord stores checksums rotated, so that a checksum over data that holds checksums stays
/// sound.
uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

template <class Number>
std::string_view raw(const Number& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

constexpr size_t kHeader = sizeof(uint64_t) + sizeof(uint32_t);
constexpr size_t kFooter = sizeof(uint32_t);

/// Length of the first whole, undamaged record of `bytes`, or 0.
size_t record_length(std::string_view bytes) {
  if (bytes.size() < kHeader + kFooter) return 0;
  uint64_t length = 0;
  uint32_t crc = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  std::memcpy(&crc, bytes.data() + sizeof length, sizeof crc);
  if (crc != masked_crc(bytes.substr(0, sizeof length))) return 0;
  if (length > bytes.size() - kHeader - kFooter) return 0;
  std::memcpy(&crc, bytes.data() + kHeader + length, sizeof crc);
  if (crc != masked_crc(bytes.substr(kHeader, length))) return 0;
  return kHeader + length + kFooter;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

std::string record_of(std::string_view message) {
  const uint64_t length = message.size();
  const uint32_t length_crc = masked_crc(raw(length));
  const uint32_t message_crc = masked_crc(message);
  std::string record;
  record.append(raw(length)).append(raw(length_crc)).append(message).append(raw(message_crc));
  return record;
}

FirstRecords first_records(std::string_view bytes, int64_t most) {
  FirstRecords records;
  while (records.count < most) {
    const size_t length = record_length(bytes.substr(records.bytes));
    if (length == 0) break;
    records.bytes += length;
    ++records.count;
  }
  return records;
}

}  // namespace bellows::events
