#include "bellows/data/batch_reader.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include <c10/util/Exception.h>

#include "bellows/core/log.h"
#include "bellows/core/text.h"

namespace bellows::data {

PreparedBatch BatchReader::read(int64_t number, Reading& reading) {
  const auto fail = [&](const std::string& cause) {
    std::throw_with_nested(Error(concat("batch ", number, " of epoch ", pass_.epoch, ": ", cause)));
  };
  try {
    return read_batch(number, reading);
  } catch (const SampleError&) {
    throw;
  } catch (const EnvironmentError&) {
    throw;
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (const Cancelled&) {
    throw;
  } catch (...) {
    fail(kNoException);
  }
  return {};
}

void BatchReader::skip(PreparedBatch& batch, int64_t index, const std::string& reason) const {
  batch.skipped.push_back({index, reason});
  log::warn_once("loader: some samples cannot be read and are left out; the report counts them");
}

Tree BatchReader::collated(std::span<const Tree> samples) const {
  if (options_.collate) return options_.collate(samples, *memory_);
  return collate(samples, *memory_, {.pad = options_.pad});
}

void BatchReader::transform(Batch& batch, int64_t number) {
  if (!options_.on_batch) return;
  // Another stream of numbers than any sample's: those have indices of 0 and more.
  Random random(pass_.seed, pass_.epoch, -1 - number);
  batch.data = options_.on_batch(std::move(batch.data), random);
}

template <class Get>
std::optional<Tree> BatchReader::sample(PreparedBatch& batch, int64_t index, Get get) {
  check_cancelled();
  if (options_.on_error == OnError::raise) return get();
  try {
    return get();
  } catch (const SampleError& error) {
    skip(batch, index, error.what());
    return std::nullopt;
  }
}

void BatchReader::finish(PreparedBatch& batch, int64_t number, std::vector<Tree> samples,
                         std::vector<int64_t> indices) {
  while (!samples.empty()) {
    try {
      batch.batch.data = collated(samples);
      break;
    } catch (const CollateError& error) {
      if (error.position() >= samples.size()) {
        std::throw_with_nested(
            ValueError(concat("collate: an error names sample ", error.position(), " of ",
                              samples.size(), ": ", error.what())));
      }
      const auto place = static_cast<std::ptrdiff_t>(error.position());
      const int64_t index = indices[error.position()];
      if (options_.on_error == OnError::raise)
        std::throw_with_nested(SampleError(index, error.what(), source(index)));
      skip(batch, index, SampleError(index, error.what(), source(index)).what());
      samples.erase(samples.begin() + place);
      indices.erase(indices.begin() + place);
    }
  }
  batch.batch.samples = static_cast<int64_t>(samples.size());
  if (!samples.empty()) transform(batch.batch, number);
}

namespace {

class MapReader : public BatchReader {
 public:
  MapReader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const BatchList> list,
            const LoaderOptions& options, std::shared_ptr<BatchMemory> memory, Pass pass)
      : BatchReader(options, std::move(memory), pass),
        dataset_(std::move(dataset)),
        list_(std::move(list)) {}

  PreparedBatch read_batch(int64_t number, Reading& reading) override {
    const auto indices = (*list_)[number];
    const Dataset& dataset = reading.own ? *reading.own : *dataset_;
    if (const auto* whole = dynamic_cast<const BatchDataset*>(&dataset)) {
      if (auto batch = read_whole(*whole, number, indices)) return std::move(*batch);
    }
    PreparedBatch batch;
    std::vector<Tree> samples;
    std::vector<int64_t> kept;
    samples.reserve(indices.size());
    for (const int64_t index : indices) {
      reading.sample = index;
      auto tree = sample(batch, index, [&] { return read_sample(dataset, index, pass_); });
      if (!tree) continue;
      samples.push_back(std::move(*tree));
      kept.push_back(index);
    }
    finish(batch, number, std::move(samples), std::move(kept));
    return batch;
  }

  std::string source(int64_t sample) const override { return dataset_->source(sample); }

 private:
  // Nothing when it failed and the samples are to be tried one by one.
  std::optional<PreparedBatch> read_whole(const BatchDataset& dataset, int64_t number,
                                          std::span<const int64_t> indices) {
    check_cancelled();
    PreparedBatch batch;
    try {
      batch.batch = {dataset.read_batch(indices, pass_, *memory_),
                     static_cast<int64_t>(indices.size())};
    } catch (const Cancelled&) {
      throw;
    } catch (...) {
      if (options_.on_error == OnError::raise) throw;
      return std::nullopt;
    }
    transform(batch.batch, number);
    return batch;
  }

  const std::shared_ptr<const Dataset> dataset_;
  const std::shared_ptr<const BatchList> list_;
};

class StreamReader : public BatchReader {
 public:
  StreamReader(std::shared_ptr<const StreamDataset> stream, const LoaderOptions& options,
               std::shared_ptr<BatchMemory> memory, Pass pass, int64_t first,
               std::set<int64_t> done)
      : BatchReader(options, std::move(memory), pass),
        stream_(std::move(stream)),
        turn_(first),
        done_(std::move(done)) {}

  PreparedBatch read_batch(int64_t number, Reading& reading) override {
    PreparedBatch batch;
    std::vector<Tree> samples;
    std::vector<int64_t> kept;
    for (Record& record : records(number)) {
      const int64_t index = record.index;
      const Underway underway(*this, index, record.source);
      reading.sample = index;
      auto tree = sample(batch, index, [&] { return decode(std::move(record)); });
      if (!tree) continue;
      samples.push_back(std::move(*tree));
      kept.push_back(index);
    }
    finish(batch, number, std::move(samples), std::move(kept));
    return batch;
  }

  std::string source(int64_t sample) const override {
    const std::lock_guard lock(mutex_);
    const auto found = underway_.find(sample);
    return found != underway_.end() ? found->second : "";
  }

  void cancel() override {
    BatchReader::cancel();
    const std::lock_guard lock(mutex_);
    turn_came_.notify_all();
  }

 private:
  Tree decode(Record record) const {
    const int64_t index = record.index;
    const std::string source = record.source;
    try {
      return stream_->decode(std::move(record), pass_);
    } catch (const c10::Error& error) {
      std::throw_with_nested(SampleError(index, error.what_without_backtrace(), source));
    } catch (const std::exception& error) {
      std::throw_with_nested(SampleError(index, error.what(), source));
    } catch (...) {
      std::throw_with_nested(SampleError(index, kNoException, source));
    }
  }

  // Batches take their records from the one reader in turn; one that is read again, after an error,
  // takes them from a reader of its own.
  std::vector<Record> records(int64_t number) {
    std::unique_lock lock(mutex_);
    if (number < turn_) {
      lock.unlock();
      return take(*stream_->open(pass_, number * options_.batch_size), number);
    }
    // Another thread has the reader while `turn_` is its batch.
    while (turn_ != number) {
      check_cancelled();
      turn_came_.wait(lock);
    }
    check_cancelled();
    lock.unlock();
    const EndOfTurn end(*this);
    try {
      if (!reader_) reader_ = stream_->open(pass_, number * options_.batch_size);
      return take(*reader_, number);
    } catch (...) {
      reader_ = nullptr;
      throw;
    }
  }

  // The source of a record that is being decoded, for whoever asks meanwhile.
  struct Underway {
    Underway(StreamReader& reader, int64_t index, const std::string& source)
        : reader_(reader), index_(index) {
      const std::lock_guard lock(reader_.mutex_);
      reader_.underway_.emplace(index_, source);
    }
    ~Underway() {
      const std::lock_guard lock(reader_.mutex_);
      reader_.underway_.erase(index_);
    }
    Underway(const Underway&) = delete;
    Underway& operator=(const Underway&) = delete;
    StreamReader& reader_;
    const int64_t index_;
  };

  struct EndOfTurn {
    explicit EndOfTurn(StreamReader& reader) : reader_(reader) {}
    ~EndOfTurn() {
      const std::lock_guard lock(reader_.mutex_);
      ++reader_.turn_;
      for (; reader_.done_.contains(reader_.turn_); ++reader_.turn_) reader_.reader_ = nullptr;
      reader_.turn_came_.notify_all();
    }
    StreamReader& reader_;
  };

  std::vector<Record> take(RecordReader& reader, int64_t number) const {
    std::vector<Record> records;
    const int64_t begin = number * options_.batch_size;
    const int64_t count = std::min(options_.batch_size, stream_->size() - begin);
    while (static_cast<int64_t>(records.size()) < count) {
      check_cancelled();
      auto record = reader.next();
      if (!record) {
        throw EnvironmentError(concat("the stream ended after ", begin + std::ssize(records),
                                      " records of epoch ", pass_.epoch, ", expected ",
                                      stream_->size()));
      }
      records.push_back(std::move(*record));
    }
    return records;
  }

  const std::shared_ptr<const StreamDataset> stream_;
  mutable std::mutex mutex_;
  std::map<int64_t, std::string> underway_;
  std::condition_variable turn_came_;
  int64_t turn_;                  // the batch whose records come next
  const std::set<int64_t> done_;  // batches nobody will ask for
  std::unique_ptr<RecordReader> reader_;
};

}  // namespace

std::shared_ptr<BatchReader> make_map_reader(std::shared_ptr<const Dataset> dataset,
                                             std::shared_ptr<const BatchList> list,
                                             const LoaderOptions& options,
                                             std::shared_ptr<BatchMemory> memory, Pass pass) {
  return std::make_shared<MapReader>(std::move(dataset), std::move(list), options,
                                     std::move(memory), pass);
}

std::shared_ptr<BatchReader> make_stream_reader(std::shared_ptr<const StreamDataset> stream,
                                                const LoaderOptions& options,
                                                std::shared_ptr<BatchMemory> memory, Pass pass,
                                                int64_t first, std::set<int64_t> done) {
  return std::make_shared<StreamReader>(std::move(stream), options, std::move(memory), pass, first,
                                        std::move(done));
}

}  // namespace bellows::data
