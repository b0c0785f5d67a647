#include "bellows/data/loader.h"

#include <utility>

#include "bellows/core/clock.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/batch_plan.h"
#include "bellows/data/batch_reader.h"
#include "bellows/data/worker_team.h"

namespace bellows::data {
namespace {

void check_options(const LoaderOptions& options) {
  const auto fail = [](const auto&... what) { throw ValueError(concat("loader: ", what...)); };
  if (options.workers < 0) fail("workers must be 0 or more, got ", options.workers);
  constexpr int64_t kMostAhead = 1 << 20;
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  if (options.prefetch < 1 || options.prefetch > kMostAhead)
    fail("got prefetch ", options.prefetch, ", expected 1 to ", kMostAhead);
  if (options.workers > kMostAhead)
    fail("got ", options.workers, " workers, expected at most ", kMostAhead);
  if (options.timeout.count() < 0 || options.timeout > kLongest) {
    fail("got a time-out of ", options.timeout.count(), " ms, expected 0 (none) to a year");
  }
  if (options.stop_timeout.count() < 0 || options.stop_timeout > kLongest) {
    fail("got a stop_timeout of ", options.stop_timeout.count(), " ms, expected 0 to a year");
  }
  if (options.collate && options.pad) {
    fail("got both a collate function and a value for padding, expected one of them");
  }
}

// Of a stream: nothing but counts.
class StreamBatches : public BatchSampler {
 public:
  StreamBatches(std::shared_ptr<const StreamDataset> stream, int64_t batch_size, bool drop_last)
      : stream_(std::move(stream)), batch_size_(batch_size), drop_last_(drop_last) {
    if (batch_size_ < 1)
      throw ValueError(concat("loader: got batch size ", batch_size_, ", expected at least 1"));
  }
  int64_t size() const override {
    const int64_t whole = stream_->size() / batch_size_;
    return whole + (!drop_last_ && stream_->size() % batch_size_ != 0 ? 1 : 0);
  }
  int64_t samples() const override { return drop_last_ ? size() * batch_size_ : stream_->size(); }
  int64_t batch_size() const override { return batch_size_; }
  BatchList batches(int64_t) const override {
    return {{}, std::vector<int64_t>(static_cast<size_t>(size()))};
  }
  int64_t world_size() const override { return stream_->world_size(); }
  uint64_t order_hash(int64_t epoch) const override { return stream_->order_hash(epoch); }
  Tree::Dict settings() const override { return {{"drop_last", drop_last_}}; }
  bool may_be_empty() const override { return world_size() > 1; }

 private:
  std::shared_ptr<const StreamDataset> stream_;
  int64_t batch_size_;
  bool drop_last_;
};

class TheLoader : public Loader {
 public:
  TheLoader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const StreamDataset> stream,
            BatchPlan plan, const LoaderOptions& options)
      : dataset_(std::move(dataset)),
        stream_(std::move(stream)),
        options_(options),
        plan_(std::move(plan)),
        memory_(std::make_shared<BatchMemory>(options.memory)) {
    if (options_.workers == 0) return;
    team_.emplace(options_.workers, options_.workers * options_.prefetch, dataset_);
    team_->set_stop_timeout(options_.stop_timeout);
  }

  int64_t batches() const override { return plan_.batches(); }
  int64_t samples() const override { return plan_.samples(); }
  int64_t batch_size() const override { return plan_.batch_size(); }
  int64_t epoch() const override { return plan_.epoch(); }
  int64_t position() const override { return plan_.position(); }

  void start(int64_t epoch, int64_t first_batch) override {
    plan_.go_to(epoch, first_batch);
    leave_epoch();
  }

  std::optional<Batch> next() override {
    const auto begin = monotonic_clock().now();
    auto batch = next_with_samples();
    report_.wait_seconds += seconds_since(begin);
    return batch;
  }

  LoaderReport report() const override {
    LoaderReport report = report_;
    report.memory = memory_->stats();
    return report;
  }

  Tree state_dict() const override { return plan_.state_dict(); }
  void load_state_dict(const Tree& state) override {
    plan_.load_state_dict(state);
    leave_epoch();
  }

 private:
  std::optional<Batch> next_with_samples() {
    while (plan_.position() < plan_.batches()) {
      auto [number, prepared] = team_ ? take() : read_here();
      plan_.consume(number);
      count(prepared);
      if (prepared.batch.samples > 0) return std::move(prepared.batch);
    }
    return std::nullopt;
  }

  void count(const PreparedBatch& prepared) {
    constexpr size_t kMostKept = 100;
    if (prepared.batch.samples > 0) ++report_.batches;
    for (const SkippedSample& skipped : prepared.skipped) {
      ++report_.skipped;
      if (report_.first_skipped.size() < kMostKept) report_.first_skipped.push_back(skipped);
    }
  }

  WorkerTeam::Taken read_here() {
    if (!reader_) reader_ = make_reader();
    return {plan_.first(), reader_->read(plan_.first(), reading_)};
  }

  WorkerTeam::Taken take() {
    if (!reader_) {
      auto reader = make_reader();
      team_->serve(reader, plan_.first(), plan_.batches(), plan_.ahead());
      reader_ = std::move(reader);
    }
    const auto number = options_.in_order ? std::optional(plan_.first()) : std::nullopt;
    auto taken = team_->take(number, options_.timeout);
    if (taken) return std::move(*taken);
    throw TimeoutError(concat("loader: ", number ? concat("batch ", *number) : "no batch",
                              " of epoch ", plan_.epoch(), number ? " did not come" : " came",
                              " within ", options_.timeout.count(), " ms: ", team_->activity(),
                              "; call again to wait longer, or look at what is read there"));
  }

  std::shared_ptr<BatchReader> make_reader() const {
    const Pass pass{options_.seed, plan_.epoch()};
    if (stream_) {
      return make_stream_reader(stream_, options_, memory_, pass, plan_.first(), plan_.ahead());
    }
    return make_map_reader(dataset_, plan_.list(), options_, memory_, pass);
  }

  void leave_epoch() {
    if (team_) team_->stop();
    reader_ = nullptr;
  }

  const std::shared_ptr<const Dataset> dataset_;  // one of these two
  const std::shared_ptr<const StreamDataset> stream_;
  const LoaderOptions options_;
  BatchPlan plan_;
  std::shared_ptr<BatchMemory> memory_;
  std::shared_ptr<BatchReader> reader_;  // of the present epoch, once something was asked for
  Reading reading_;
  LoaderReport report_;
  std::optional<WorkerTeam> team_;
};

}  // namespace

std::unique_ptr<Loader> make_loader(std::shared_ptr<const Dataset> dataset,
                                    std::shared_ptr<const Sampler> sampler, LoaderOptions options) {
  if (dataset == nullptr) throw ValueError("loader: the dataset is null");
  check_options(options);
  BatchPlan plan(dataset->size(), std::make_shared<SequentialBatches>(
                                      std::move(sampler), options.batch_size, options.drop_last));
  return std::make_unique<TheLoader>(std::move(dataset), nullptr, std::move(plan), options);
}

std::unique_ptr<Loader> make_loader(std::shared_ptr<const Dataset> dataset,
                                    std::shared_ptr<const BatchSampler> sampler,
                                    LoaderOptions options) {
  if (dataset == nullptr) throw ValueError("loader: the dataset is null");
  check_options(options);
  if (options.batch_size != 1 || options.drop_last) {
    throw ValueError(
        "loader: got a batch sampler together with batch_size or drop_last; say both to the "
        "sampler");
  }
  BatchPlan plan(dataset->size(), std::move(sampler));
  return std::make_unique<TheLoader>(std::move(dataset), nullptr, std::move(plan), options);
}

std::unique_ptr<Loader> make_loader(std::shared_ptr<const StreamDataset> stream,
                                    LoaderOptions options) {
  if (stream == nullptr) throw ValueError("loader: the stream is null");
  check_options(options);
  BatchPlan plan(stream->global_size(),
                 std::make_shared<StreamBatches>(stream, options.batch_size, options.drop_last));
  return std::make_unique<TheLoader>(nullptr, std::move(stream), std::move(plan), options);
}

}  // namespace bellows::data
