// TFRecord's framing of messages, with lengths and checksums. Source: the format's description in
// TensorFlow's documentation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bellows::events {

/// CRC-32C (Castagnoli) of the bytes, as RFC 3720 defines it.
uint32_t crc32c(std::string_view bytes);

/// A message as a record.
std::string record_of(std::string_view message);

struct FirstRecords {
  int64_t count = 0;
  size_t bytes = 0;
};

/// The whole, undamaged records that `bytes` begin with, at most `most`.
FirstRecords first_records(std::string_view bytes, int64_t most);

}  // namespace bellows::events
