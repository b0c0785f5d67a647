#include "bellows/train/tensorboard.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>
#include <unistd.h>

#include "bellows/core/clock.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/train/events/event_file.h"

namespace bellows::train {
namespace {

std::string new_file_name() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '-';
  return concat("events.out.tfevents.", static_cast<int64_t>(unix_seconds()), ".", host.data(), ".",
                getpid());
}

/// …, -1.1e-12, -1e-12, 0, 1e-12, 1.1e-12, …, up to the double's end.
std::vector<double> bucket_edges() {
  std::vector<double> positive;
  for (double edge = 1e-12; edge < 1e20; edge *= 1.1) positive.push_back(edge);
  positive.push_back(std::numeric_limits<double>::max());
  std::vector<double> edges;
  for (auto edge = positive.rbegin(); edge != positive.rend(); ++edge) edges.push_back(-*edge);
  edges.push_back(0);
  edges.insert(edges.end(), positive.begin(), positive.end());
  return edges;
}

events::Histogram histogram_of(std::span<const double> values) {
  static const std::vector<double> edges = bucket_edges();
  events::Histogram histogram;
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  histogram.min = *min;
  histogram.max = *max;
  histogram.count = static_cast<double>(values.size());
  std::vector<double> counts(edges.size(), 0.0);
  for (const double value : values) {
    histogram.sum += value;
    histogram.sum_squares += value * value;
    // A bucket holds the values below its upper edge, and from the one before on.
    const auto upper = std::upper_bound(edges.begin(), edges.end(), value);
    counts[std::min<size_t>(upper - edges.begin(), edges.size() - 1)] += 1;
  }
  // Only from the first bucket with values to the last, and one empty bucket before them.
  const auto used = [](double count) { return count > 0; };
  const size_t first = std::find_if(counts.begin(), counts.end(), used) - counts.begin();
  const size_t last = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), used);
  for (size_t i = first > 0 ? first - 1 : 0; i < last; ++i) {
    histogram.bucket_limits.push_back(edges[i]);
    histogram.buckets.push_back(counts[i]);
  }
  return histogram;
}

}  // namespace

struct SummaryWriter::File {
  std::mutex mutex;
  std::optional<events::EventFile> events;
};

SummaryWriter::SummaryWriter(std::filesystem::path directory)
    : directory_(std::move(directory)),
      file_name_(new_file_name()),
      file_(std::make_unique<File>()) {}

SummaryWriter::~SummaryWriter() = default;

SummaryWriter::File& SummaryWriter::file() {
  if (!file_->events) {
    make_directories(directory_);
    file_->events.emplace(directory_ / file_name_, keep_records_);
    if (file_->events->records() < keep_records_) {
      log::warn(concat((directory_ / file_name_).string(), ": ", file_->events->records(),
                       " records are left of the ", keep_records_,
                       " that the checkpoint knows of; going on after them"));
    }
  }
  return *file_;
}

void SummaryWriter::add_scalar(const std::string& tag, double value, int64_t step) {
  const std::lock_guard lock(file_->mutex);
  file().events->scalar(tag, static_cast<float>(value), step, unix_seconds());
}

void SummaryWriter::add_histogram(const std::string& tag, const at::Tensor& values, int64_t step) {
  const at::Tensor host = values.detach().to(at::kCPU, at::kDouble).contiguous();
  const std::span<const double> all(host.const_data_ptr<double>(), host.numel());
  if (all.empty()) throw ValueError("add_histogram: the tensor for '" + tag + "' is empty");
  if (!std::all_of(all.begin(), all.end(), [](double value) { return std::isfinite(value); })) {
    throw ValueError("add_histogram: the tensor for '" + tag + "' holds NaN or infinite values");
  }
  const events::Histogram histogram = histogram_of(all);
  const std::lock_guard lock(file_->mutex);
  file().events->histogram(tag, histogram, step, unix_seconds());
}

void SummaryWriter::add_text(const std::string& tag, const std::string& text, int64_t step) {
  const std::lock_guard lock(file_->mutex);
  file().events->text(tag, text, step, unix_seconds());
}

void SummaryWriter::flush() {
  const std::lock_guard lock(file_->mutex);
  file().events->sync();
}

Tree SummaryWriter::state_dict() const {
  const std::lock_guard lock(file_->mutex);
  return Tree::Dict{{"file", file_name_},
                    {"records", file_->events ? file_->events->records() : keep_records_}};
}

void SummaryWriter::load_state_dict(const Tree& state) {
  const std::string name = state.at("file").string();
  const int64_t records = state.at("records").integer();
  const std::lock_guard lock(file_->mutex);
  file_->events.reset();
  file_name_ = name;
  keep_records_ = records;
}

void TensorBoardLogger::on_start(Trainer&, const Progress&) {
  writer_.flush();
}

void TensorBoardLogger::on_log(Trainer&, const Progress& progress, const Values& values) {
  for (const auto& [name, value] : values) {
    writer_.add_scalar(name == "train_loss" ? "train/loss" : "train/" + name, value, progress.step);
  }
}

void TensorBoardLogger::on_epoch(Trainer&, const Progress& progress, const Values& values) {
  for (const auto& [name, value] : values) {
    if (name.starts_with("test_"))
      writer_.add_scalar("test/" + name.substr(5), value, progress.step);
    if (name.starts_with("train_")) writer_.add_scalar("epoch/" + name, value, progress.step);
  }
}

}  // namespace bellows::train
