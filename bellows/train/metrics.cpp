#include "bellows/train/metrics.h"

#include <cmath>
#include <limits>

#include <ATen/ops/stack.h>

namespace bellows::train {

void MeanMetrics::add(const StepOutput& output, int64_t samples, int64_t step) {
  Pending batch{{{"loss", output.loss.detach()}}, samples, step};
  for (const auto& [name, value] : output.metrics) batch.values.emplace_back(name, value.detach());
  const bool on_cpu = output.loss.is_cpu();
  pending_.push_back(std::move(batch));
  if (on_cpu) collect();
}

int64_t MeanMetrics::collect() {
  std::vector<at::Tensor> values;
  for (const auto& batch : pending_) {
    for (const auto& [name, value] : batch.values) values.push_back(value.to(at::kDouble));
  }
  if (!values.empty()) {
    const at::Tensor host = values.size() == 1 ? values[0].cpu() : at::stack(values).cpu();
    const double* next = host.const_data_ptr<double>();
    for (const auto& batch : pending_) {
      for (const auto& [name, tensor] : batch.values) {
        const double value = *next++;
        if (name == "loss") {
          window_.first += value * static_cast<double>(batch.samples);
          window_.second += batch.samples;
          if (!std::isfinite(value) && first_bad_ < 0) first_bad_ = batch.step;
        }
        fold(name, value, batch.samples);
      }
      samples_ += batch.samples;
    }
    pending_.clear();
  }
  return first_bad_;
}

void MeanMetrics::fold(const std::string& name, double value, int64_t samples) {
  auto& [sum, count] = sums_[name];
  sum += value * static_cast<double>(samples);
  count += samples;
}

std::map<std::string, double> MeanMetrics::means() const {
  std::map<std::string, double> result;
  for (const auto& [name, sum] : sums_) result[name] = sum.first / static_cast<double>(sum.second);
  return result;
}

double MeanMetrics::take_window_loss() {
  const auto [sum, count] = std::exchange(window_, {0, 0});
  return count ? sum / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN();
}

MeanMetrics MeanMetrics::over(const parallel::Group& group) const {
  if (group.size() == 1) return *this;
  MeanMetrics all;
  for (const Tree& state : group.all_gather_object(state_dict())) {
    MeanMetrics one;
    one.load_state_dict(state);
    for (const auto& [name, sum] : one.sums_) {
      all.sums_[name].first += sum.first;
      all.sums_[name].second += sum.second;
    }
    all.samples_ += one.samples_;
    all.window_.first += one.window_.first;
    all.window_.second += one.window_.second;
  }
  return all;
}

void MeanMetrics::reset() {
  pending_.clear();
  sums_.clear();
  samples_ = 0;
  first_bad_ = -1;
}

Tree MeanMetrics::state_dict() const {
  Tree::Dict sums;
  for (const auto& [name, sum] : sums_) sums[name] = Tree::List{sum.first, sum.second};
  return Tree::Dict{{"sums", std::move(sums)},
                    {"samples", samples_},
                    {"window", Tree::List{window_.first, window_.second}}};
}

void MeanMetrics::load_state_dict(const Tree& state) {
  std::map<std::string, std::pair<double, int64_t>> sums;
  for (const auto& [name, sum] : state.at("sums").dict()) {
    sums[name] = {sum[0].number(), sum[1].integer()};
  }
  const auto& window = state.at("window");
  const int64_t samples = state.at("samples").integer();
  window_ = {window[0].number(), window[1].integer()};
  reset();
  sums_ = std::move(sums);
  samples_ = samples;
}

}  // namespace bellows::train
