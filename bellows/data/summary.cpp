#include "bellows/data/summary.h"

#include <algorithm>
#include <array>
#include <exception>

#include <c10/core/ScalarType.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

int64_t whole_number(const Tree& value) {
  if (value.is_int()) return value.integer();
  if (!value.is_tensor()) return -1;
  const at::Tensor& tensor = value.tensor();
  return tensor.dim() == 0 && tensor.scalar_type() == at::kLong ? tensor.item<int64_t>() : -1;
}

// As NumPy and PyTorch name them in Python.
std::string type_name(at::ScalarType type) {
  return std::string(c10::getDtypeNames(type).first);
}

void add_shape(FieldSummary& field, at::IntArrayRef sizes) {
  if (field.tensors++ == 0) {
    field.least = field.most = sizes.vec();
  } else if (field.least.size() != sizes.size()) {
    field.ranks_differ = true;
  } else {
    for (size_t d = 0; d < sizes.size(); ++d) {
      field.least[d] = std::min(field.least[d], sizes[d]);
      field.most[d] = std::max(field.most[d], sizes[d]);
    }
  }
}

void add_fields(const Tree& value, const std::string& path, Summary& summary) {
  const auto below = [&](const std::string& name) {
    return path.empty() ? name : path + "." + name;
  };
  if (value.is_list()) {
    for (size_t i = 0; i < value.list().size(); ++i)
      add_fields(value.list()[i], below(std::to_string(i)), summary);
  } else if (value.is_dict()) {
    for (const auto& [key, entry] : value.dict()) add_fields(entry, below(key), summary);
  } else {
    FieldSummary& field = summary.fields[path];
    if (value.is_tensor()) {
      add_shape(field, value.tensor().sizes());
    }
    ++field.types[value.is_tensor() ? type_name(value.tensor().scalar_type())
                                    : std::string(value.kind())];
  }
}

// Samples as they are, whatever their shapes.
Tree keep(std::span<const Tree> samples, BatchMemory&) {
  return Tree::List(samples.begin(), samples.end());
}

// Samples one by one, also of what is faster by batches.
class OneByOne : public Dataset {
 public:
  explicit OneByOne(std::shared_ptr<const Dataset> dataset) : dataset_(std::move(dataset)) {}
  int64_t size() const override { return dataset_->size(); }
  Tree get(int64_t index) const override { return dataset_->get(index); }
  Tree read(int64_t index, const Pass& pass) const override { return dataset_->read(index, pass); }
  std::string source(int64_t index) const override { return dataset_->source(index); }

 private:
  std::shared_ptr<const Dataset> dataset_;
};

constexpr int64_t kBatch = 16;

LoaderOptions loading(int64_t workers) {
  return {.batch_size = kBatch, .workers = workers, .on_error = OnError::skip, .collate = keep};
}

}  // namespace

int64_t class_of(const Tree& sample) {
  if (sample.is_list()) return sample.list().size() < 2 ? -1 : whole_number(sample.list().back());
  constexpr std::array kKeys = {"cls", "target", "label", "class", "index"};
  for (const char* key : kKeys) {
    if (sample.contains(key)) return whole_number(sample.at(key));
  }
  return -1;
}

void Summarizer::add(std::shared_ptr<const Dataset> dataset) {
  const auto one_by_one = std::make_shared<OneByOne>(dataset);
  const auto loader = make_loader(one_by_one, std::make_shared<SequentialSampler>(dataset->size()),
                                  loading(options_.workers));
  read(*loader);
}

void Summarizer::add(std::shared_ptr<const StreamDataset> stream) {
  const auto loader = make_loader(stream, loading(options_.workers));
  read(*loader);
}

void Summarizer::add_damage(const std::string& reason) {
  damage(-1, reason);
}

void Summarizer::read(Loader& loader) {
  int64_t done = 0;
  try {
    while (auto batch = loader.next()) {
      for (const Tree& sample : batch->data.list()) count(sample);
      done += batch->samples;
      if (options_.on_progress) options_.on_progress(done, loader.samples());
    }
  } catch (const EnvironmentError& error) {
    damage(-1, error.what());
  }
  const LoaderReport report = loader.report();
  for (const SkippedSample& sample : report.first_skipped) damage(sample.index, sample.reason);
  summary_.damaged += report.skipped - std::ssize(report.first_skipped);
}

void Summarizer::count(const Tree& sample) {
  ++summary_.samples;
  add_fields(sample, "", summary_);
  if (const int64_t label = class_of(sample); label >= 0) ++summary_.classes[label];
  if (options_.on_sample) options_.on_sample(sample);
}

void Summarizer::damage(int64_t index, const std::string& reason) {
  ++summary_.damaged;
  if (std::ssize(summary_.first_damaged) < options_.most_damaged)
    summary_.first_damaged.push_back({index, reason});
}

}  // namespace bellows::data
