#include "bellows/data/combine.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "bellows/core/text.h"

namespace bellows::data {
namespace {

std::shared_ptr<const Dataset> checked(std::shared_ptr<const Dataset> dataset, const char* what) {
  if (dataset == nullptr) throw ValueError(concat(what, ": the dataset is null"));
  return dataset;
}

// What draws random numbers for samples. Those on top of each other must not draw the same.
class Draws {
 public:
  explicit Draws(const Dataset& below) {
    if (const auto* other = dynamic_cast<const Draws*>(&below)) level_ = other->level_ + 1;
  }
  virtual ~Draws() = default;

 protected:
  Random random(int64_t index, Pass pass) const {
    pass.seed += level_ * 0x9E3779B97F4A7C15u;
    return pass.random(index);
  }

 private:
  uint64_t level_ = 0;
};

class Mapped : public Dataset, public Draws {
 public:
  Mapped(std::shared_ptr<const Dataset> dataset, SampleTransform transform)
      : Draws(*dataset), dataset_(std::move(dataset)), transform_(std::move(transform)) {}
  int64_t size() const override { return dataset_->size(); }
  Tree get(int64_t index) const override { return read(index, Pass{}); }
  Tree read(int64_t index, const Pass& pass) const override {
    Random own = random(index, pass);
    return transform_(dataset_->read(index, pass), own);
  }
  std::string source(int64_t index) const override { return dataset_->source(index); }
  std::unique_ptr<Dataset> for_worker() const override {
    std::shared_ptr<const Dataset> own = dataset_->for_worker();
    return own ? std::make_unique<Mapped>(std::move(own), transform_) : nullptr;
  }

 private:
  std::shared_ptr<const Dataset> dataset_;
  SampleTransform transform_;
};

class BatchMapped : public BatchDataset, public Draws {
 public:
  BatchMapped(std::shared_ptr<const BatchDataset> dataset, BatchMap transform)
      : Draws(*dataset), dataset_(std::move(dataset)), transform_(std::move(transform)) {}
  int64_t size() const override { return dataset_->size(); }
  Tree get(int64_t index) const override { return read(index, Pass{}); }
  Tree read(int64_t index, const Pass& pass) const override {
    BatchMemory memory;
    return read_batch({&index, 1}, pass, memory).map([](const at::Tensor& tensor) {
      return tensor.select(0, 0);
    });
  }
  Tree read_batch(std::span<const int64_t> indices, const Pass& pass,
                  BatchMemory& memory) const override {
    Tree batch = dataset_->read_batch(indices, pass, memory);
    std::vector<Random> randoms;
    randoms.reserve(indices.size());
    for (const int64_t index : indices) randoms.push_back(random(index, pass));
    return transform_(std::move(batch), randoms, memory);
  }
  std::string source(int64_t index) const override { return dataset_->source(index); }
  std::unique_ptr<Dataset> for_worker() const override {
    std::shared_ptr<const Dataset> own = dataset_->for_worker();
    auto batches = std::dynamic_pointer_cast<const BatchDataset>(own);
    if (own && !batches)
      throw ValueError("map_batches: the dataset for a worker does not read batches");
    return own ? std::make_unique<BatchMapped>(std::move(batches), transform_) : nullptr;
  }

 private:
  std::shared_ptr<const BatchDataset> dataset_;
  BatchMap transform_;
};

class MappedStream : public StreamDataset {
 public:
  MappedStream(std::shared_ptr<const StreamDataset> stream, SampleTransform transform)
      : stream_(std::move(stream)), transform_(std::move(transform)) {}
  int64_t size() const override { return stream_->size(); }
  std::unique_ptr<RecordReader> open(const Pass& pass, int64_t first) const override {
    return stream_->open(pass, first);
  }
  Tree decode(Record record, const Pass& pass) const override {
    Random random = pass.random(record.index);
    return transform_(stream_->decode(std::move(record), pass), random);
  }
  int64_t world_size() const override { return stream_->world_size(); }
  int64_t global_size() const override { return stream_->global_size(); }
  uint64_t order_hash(int64_t epoch) const override { return stream_->order_hash(epoch); }

 private:
  std::shared_ptr<const StreamDataset> stream_;
  SampleTransform transform_;
};

class Concatenated : public Dataset {
 public:
  explicit Concatenated(std::vector<std::shared_ptr<const Dataset>> datasets)
      : datasets_(std::move(datasets)) {
    for (const auto& dataset : datasets_) {
      ends_.push_back(checked(dataset, "concat")->size() + (ends_.empty() ? 0 : ends_.back()));
    }
  }
  int64_t size() const override { return ends_.back(); }
  Tree get(int64_t index) const override {
    check_indices({&index, 1}, size());
    const auto [part, inner] = find(index);
    return datasets_[part]->get(inner);
  }
  Tree read(int64_t index, const Pass& pass) const override {
    check_indices({&index, 1}, size());
    const auto [part, inner] = find(index);
    Pass own = pass;
    own.seed += part * 0xD1B54A32D192ED03u;  // equal indices of two parts are different samples
    return datasets_[part]->read(inner, own);
  }
  std::string source(int64_t index) const override {
    if (index < 0 || index >= size()) return {};
    const auto [part, inner] = find(index);
    return datasets_[part]->source(inner);
  }
  std::unique_ptr<Dataset> for_worker() const override {
    bool any = false;
    std::vector<std::shared_ptr<const Dataset>> own;
    for (const auto& dataset : datasets_) {
      std::shared_ptr<const Dataset> mine = dataset->for_worker();
      any = any || mine;
      own.push_back(mine ? std::move(mine) : dataset);
    }
    return any ? std::make_unique<Concatenated>(std::move(own)) : nullptr;
  }

 private:
  std::pair<size_t, int64_t> find(int64_t index) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), index);
    const auto part = static_cast<size_t>(end - ends_.begin());
    return {part, index - (part == 0 ? 0 : ends_[part - 1])};
  }

  std::vector<std::shared_ptr<const Dataset>> datasets_;
  std::vector<int64_t> ends_;
};

class Subset : public Dataset {
 public:
  Subset(std::shared_ptr<const Dataset> dataset,
         std::shared_ptr<const std::vector<int64_t>> indices)
      : dataset_(std::move(dataset)), indices_(std::move(indices)) {}
  int64_t size() const override { return std::ssize(*indices_); }
  Tree get(int64_t index) const override {
    check_indices({&index, 1}, size());
    return dataset_->get(inner(index));
  }
  Tree read(int64_t index, const Pass& pass) const override {
    check_indices({&index, 1}, size());
    return dataset_->read(inner(index), pass);
  }
  std::string source(int64_t index) const override {
    return index < 0 || index >= size() ? "" : dataset_->source(inner(index));
  }
  std::unique_ptr<Dataset> for_worker() const override {
    std::shared_ptr<const Dataset> own = dataset_->for_worker();
    return own ? std::make_unique<Subset>(std::move(own), indices_) : nullptr;
  }

 private:
  int64_t inner(int64_t index) const { return (*indices_)[static_cast<size_t>(index)]; }

  std::shared_ptr<const Dataset> dataset_;
  std::shared_ptr<const std::vector<int64_t>> indices_;
};

size_t bytes_of(const Tree& tree) {
  if (tree.is_tensor()) return tree.tensor().defined() ? tree.tensor().nbytes() : 0;
  size_t bytes = tree.is_string() ? tree.string().size() : sizeof(Tree);
  if (tree.is_list()) {
    for (const Tree& item : tree.list()) bytes += bytes_of(item);
  } else if (tree.is_dict()) {
    for (const auto& [key, item] : tree.dict()) bytes += bytes_of(item);
  }
  return bytes;
}

class Cached : public Dataset {
 public:
  // Shared by the datasets of all workers.
  struct Store {
    explicit Store(int64_t size) : samples(static_cast<size_t>(size)) {}
    std::mutex mutex;
    std::vector<std::shared_ptr<const Tree>> samples;
    size_t bytes = 0;
  };

  Cached(std::shared_ptr<const Dataset> dataset, size_t most_bytes, std::shared_ptr<Store> store)
      : dataset_(std::move(dataset)), most_bytes_(most_bytes), store_(std::move(store)) {}
  int64_t size() const override { return dataset_->size(); }
  Tree get(int64_t index) const override { return read(index, Pass{}); }
  Tree read(int64_t index, const Pass& pass) const override {
    check_indices({&index, 1}, size());
    std::shared_ptr<const Tree>& place = store_->samples[static_cast<size_t>(index)];
    std::shared_ptr<const Tree> kept;
    {
      const std::lock_guard lock(store_->mutex);
      kept = place;
    }
    if (kept) return copy(*kept);
    Tree sample = dataset_->read(index, pass);
    const size_t bytes = bytes_of(sample);
    auto own = std::make_shared<const Tree>(copy(sample));
    const std::lock_guard lock(store_->mutex);
    if (!place && store_->bytes + bytes <= most_bytes_) {
      store_->bytes += bytes;
      place = std::move(own);
    }
    return sample;
  }
  std::string source(int64_t index) const override { return dataset_->source(index); }
  std::unique_ptr<Dataset> for_worker() const override {
    std::shared_ptr<const Dataset> own = dataset_->for_worker();
    return own ? std::make_unique<Cached>(std::move(own), most_bytes_, store_) : nullptr;
  }

 private:
  static Tree copy(const Tree& tree) {
    return tree.map([](const at::Tensor& tensor) { return tensor.clone(); });
  }

  std::shared_ptr<const Dataset> dataset_;
  size_t most_bytes_;
  std::shared_ptr<Store> store_;
};

}  // namespace

std::shared_ptr<Dataset> map(std::shared_ptr<const Dataset> dataset, SampleTransform transform) {
  if (!transform) throw ValueError("map: the transform is empty");
  return std::make_shared<Mapped>(checked(std::move(dataset), "map"), std::move(transform));
}

std::shared_ptr<BatchDataset> map_batches(std::shared_ptr<const BatchDataset> dataset,
                                          BatchMap transform) {
  if (!transform) throw ValueError("map_batches: the transform is empty");
  checked(dataset, "map_batches");
  return std::make_shared<BatchMapped>(std::move(dataset), std::move(transform));
}

std::shared_ptr<StreamDataset> map(std::shared_ptr<const StreamDataset> stream,
                                   SampleTransform transform) {
  if (stream == nullptr) throw ValueError("map: the stream is null");
  if (!transform) throw ValueError("map: the transform is empty");
  return std::make_shared<MappedStream>(std::move(stream), std::move(transform));
}

std::shared_ptr<Dataset> concat_datasets(std::vector<std::shared_ptr<const Dataset>> datasets) {
  if (datasets.empty()) throw ValueError("concat: got no datasets, expected at least one");
  return std::make_shared<Concatenated>(std::move(datasets));
}

std::shared_ptr<Dataset> subset(std::shared_ptr<const Dataset> dataset,
                                std::vector<int64_t> indices) {
  checked(dataset, "subset");
  if (!indices.empty()) check_indices(indices, dataset->size());
  return std::make_shared<Subset>(std::move(dataset),
                                  std::make_shared<const std::vector<int64_t>>(std::move(indices)));
}

std::shared_ptr<Dataset> cache(std::shared_ptr<const Dataset> dataset, size_t most_bytes) {
  checked(dataset, "cache");
  const auto store = std::make_shared<Cached::Store>(dataset->size());
  return std::make_shared<Cached>(std::move(dataset), most_bytes, store);
}

}  // namespace bellows::data
