#include "bellows/train/data_stages.h"

#include <utility>

#include "bellows/core/error.h"
#include "bellows/formats/input_bytes.h"

namespace bellows::train {
namespace {

template <class Work>
auto timing(StageTimes& times, Stage stage, Work work) {
  const auto begin = monotonic_clock().now();
  auto result = work();
  times.add(stage, monotonic_clock().now() - begin);
  return result;
}

class TimedDataset : public data::Dataset {
 public:
  TimedDataset(std::shared_ptr<const Dataset> dataset, Times times)
      : dataset_(std::move(dataset)), times_(std::move(times)) {}
  int64_t size() const override { return dataset_->size(); }
  Tree get(int64_t index) const override { return dataset_->get(index); }
  Tree read(int64_t index, const data::Pass& pass) const override {
    return timing(*times_, Stage::read, [&] { return dataset_->read(index, pass); });
  }
  std::string source(int64_t index) const override { return dataset_->source(index); }

 private:
  std::shared_ptr<const Dataset> dataset_;
  Times times_;
};

class TimedBatches : public data::BatchDataset {
 public:
  TimedBatches(std::shared_ptr<const BatchDataset> dataset, Times times)
      : dataset_(std::move(dataset)), times_(std::move(times)) {}
  int64_t size() const override { return dataset_->size(); }
  Tree get(int64_t index) const override { return dataset_->get(index); }
  Tree read(int64_t index, const data::Pass& pass) const override {
    return timing(*times_, Stage::read, [&] { return dataset_->read(index, pass); });
  }
  Tree read_batch(std::span<const int64_t> indices, const data::Pass& pass,
                  data::BatchMemory& memory) const override {
    return timing(*times_, Stage::read,
                  [&] { return dataset_->read_batch(indices, pass, memory); });
  }
  std::string source(int64_t index) const override { return dataset_->source(index); }

 private:
  std::shared_ptr<const BatchDataset> dataset_;
  Times times_;
};

class TimedFolder : public data::Dataset {
 public:
  TimedFolder(std::shared_ptr<const data::ImageFolder> folder, const data::ImageOptions& options,
              Times times)
      : folder_(std::move(folder)), options_(options), times_(std::move(times)) {}
  int64_t size() const override { return folder_->size(); }
  Tree get(int64_t index) const override {
    const std::string path = folder_->source(index);
    const std::string bytes = timing(*times_, Stage::read, [&] {
      const formats::InputFile file(path);
      return file.text(0, file.size());
    });
    const at::Tensor image = timing(*times_, Stage::transform, [&] {
      try {
        return data::decode_image(std::as_bytes(std::span(bytes)), options_);
      } catch (const EnvironmentError& error) {
        throw CorruptFileError(path, error.what());
      }
    });
    return Tree::List{image, folder_->class_of(index)};
  }
  std::string source(int64_t index) const override { return folder_->source(index); }

 private:
  std::shared_ptr<const data::ImageFolder> folder_;
  data::ImageOptions options_;
  Times times_;
};

class TimedReader : public data::RecordReader {
 public:
  TimedReader(std::unique_ptr<RecordReader> reader, Times times)
      : reader_(std::move(reader)), times_(std::move(times)) {}
  std::optional<data::Record> next() override {
    return timing(*times_, Stage::read, [&] { return reader_->next(); });
  }

 private:
  std::unique_ptr<RecordReader> reader_;
  Times times_;
};

class TimedStream : public data::StreamDataset {
 public:
  TimedStream(std::shared_ptr<const StreamDataset> stream, Times times)
      : stream_(std::move(stream)), times_(std::move(times)) {}
  int64_t size() const override { return stream_->size(); }
  std::unique_ptr<data::RecordReader> open(const data::Pass& pass, int64_t first) const override {
    return std::make_unique<TimedReader>(stream_->open(pass, first), times_);
  }
  Tree decode(data::Record record, const data::Pass& pass) const override {
    return timing(*times_, Stage::transform,
                  [&] { return stream_->decode(std::move(record), pass); });
  }
  int64_t world_size() const override { return stream_->world_size(); }
  int64_t global_size() const override { return stream_->global_size(); }
  uint64_t order_hash(int64_t epoch) const override { return stream_->order_hash(epoch); }

 private:
  std::shared_ptr<const StreamDataset> stream_;
  Times times_;
};

}  // namespace

std::shared_ptr<const data::Dataset> timed(std::shared_ptr<const data::Dataset> dataset,
                                           Times times) {
  if (auto batches = std::dynamic_pointer_cast<const data::BatchDataset>(dataset))
    return std::make_shared<TimedBatches>(std::move(batches), std::move(times));
  return std::make_shared<TimedDataset>(std::move(dataset), std::move(times));
}

std::shared_ptr<const data::StreamDataset> timed(std::shared_ptr<const data::StreamDataset> stream,
                                                 Times times) {
  return std::make_shared<TimedStream>(std::move(stream), std::move(times));
}

std::shared_ptr<const data::Dataset> timed(std::shared_ptr<const data::ImageFolder> folder,
                                           const data::ImageOptions& options, Times times) {
  return std::make_shared<TimedFolder>(std::move(folder), options, std::move(times));
}

data::SampleTransform timed(data::SampleTransform transform, Times times) {
  return [transform = std::move(transform), times = std::move(times)](Tree sample,
                                                                      data::Random& random) {
    return timing(*times, Stage::transform, [&] { return transform(std::move(sample), random); });
  };
}

data::BatchMap timed_map(data::BatchMap transform, Times times) {
  return [transform = std::move(transform), times = std::move(times)](
             Tree batch, std::span<data::Random> randoms, data::BatchMemory& memory) {
    return timing(*times, Stage::transform,
                  [&] { return transform(std::move(batch), randoms, memory); });
  };
}

data::Collate timed_collate(Times times) {
  return [times = std::move(times)](std::span<const Tree> samples, data::BatchMemory& memory) {
    return timing(*times, Stage::collate, [&] { return data::collate(samples, memory); });
  };
}

}  // namespace bellows::train
