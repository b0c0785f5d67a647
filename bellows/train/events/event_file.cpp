#include "bellows/train/events/event_file.h"

#include <array>
#include <bit>
#include <cstring>

#include "bellows/core/clock.h"
#include "events/event.pb.h"  // generated

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

Event new_event(int64_t step, double wall_time) {
  Event event;
  event.set_wall_time(wall_time);
  event.set_step(step);
  return event;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

EventFile::EventFile(std::filesystem::path path, int64_t keep_records) {
  const std::string old = keep_records > 0 && std::filesystem::exists(path) ? read_file(path) : "";
  size_t end = 0;
  while (records_ < keep_records) {
    const size_t length = record_length(std::string_view(old).substr(end));
    if (length == 0) break;
    end += length;
    ++records_;
  }
  write_file_atomically(path, std::string_view(old).substr(0, end));
  file_.emplace(path, /*append=*/true);
  if (records_ == 0) {
    Event version = new_event(0, unix_seconds());
    version.set_file_version("brain.Event:2");
    append(version.SerializeAsString());
  }
}

void EventFile::append(std::string_view message) {
  const uint64_t length = message.size();
  const uint32_t length_crc = masked_crc(raw(length));
  const uint32_t message_crc = masked_crc(message);
  std::string record;
  record.append(raw(length)).append(raw(length_crc)).append(message).append(raw(message_crc));
  file_->write(record);
  ++records_;
}

void EventFile::scalar(std::string_view tag, float value, int64_t step, double wall_time) {
  Event event = new_event(step, wall_time);
  auto& entry = *event.mutable_summary()->add_value();
  entry.set_tag(std::string(tag));
  entry.set_simple_value(value);
  append(event.SerializeAsString());
}

void EventFile::histogram(std::string_view tag, const Histogram& value, int64_t step,
                          double wall_time) {
  Event event = new_event(step, wall_time);
  auto& entry = *event.mutable_summary()->add_value();
  entry.set_tag(std::string(tag));
  auto& histogram = *entry.mutable_histo();
  histogram.set_min(value.min);
  histogram.set_max(value.max);
  histogram.set_num(value.count);
  histogram.set_sum(value.sum);
  histogram.set_sum_squares(value.sum_squares);
  for (const double limit : value.bucket_limits) histogram.add_bucket_limit(limit);
  for (const double count : value.buckets) histogram.add_bucket(count);
  append(event.SerializeAsString());
}

void EventFile::text(std::string_view tag, std::string_view value, int64_t step, double wall_time) {
  constexpr int kStringType = 7;  // DT_STRING
  Event event = new_event(step, wall_time);
  auto& entry = *event.mutable_summary()->add_value();
  entry.set_tag(std::string(tag));
  entry.mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  auto& tensor = *entry.mutable_tensor();
  tensor.set_dtype(kStringType);
  tensor.mutable_tensor_shape()->add_dim()->set_size(1);
  tensor.add_string_val(std::string(value));
  append(event.SerializeAsString());
}

}  // namespace bellows::events
