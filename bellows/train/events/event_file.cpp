#include "bellows/train/events/event_file.h"

#include "bellows/core/clock.h"
#include "bellows/train/events/records.h"
#include "events/event.pb.h"  // generated

namespace bellows::events {
namespace {

Event new_event(int64_t step, double wall_time) {
  Event event;
  event.set_wall_time(wall_time);
  event.set_step(step);
  return event;
}

}  // namespace

EventFile::EventFile(std::filesystem::path path, int64_t keep_records) {
  const std::string old = keep_records > 0 && std::filesystem::exists(path) ? read_file(path) : "";
  const FirstRecords kept = first_records(old, keep_records);
  records_ = kept.count;
  write_file_atomically(path, std::string_view(old).substr(0, kept.bytes));
  file_.emplace(path, /*append=*/true);
  if (records_ == 0) {
    Event version = new_event(0, unix_seconds());
    version.set_file_version("brain.Event:2");
    append(version.SerializeAsString());
  }
}

void EventFile::append(std::string_view message) {
  file_->write(record_of(message));
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
