// How long samples spend in each stage on their way into a batch: stop-watches around the parts of
// a data pipeline.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "bellows/core/clock.h"
#include "bellows/data/combine.h"
#include "bellows/data/image.h"
#include "bellows/data/loader.h"

namespace bellows::train {

enum class Stage { read, transform, collate };

/// Thread-safe.
class StageTimes {
 public:
  void add(Stage stage, Clock::Duration time) { total(stage) += time.count(); }
  double seconds(Stage stage) const {
    return 1e-9 * static_cast<double>(nanoseconds_[static_cast<size_t>(stage)].load());
  }
  void reset() {
    for (auto& time : nanoseconds_) time = 0;
  }

 private:
  std::atomic<int64_t>& total(Stage stage) { return nanoseconds_[static_cast<size_t>(stage)]; }
  std::array<std::atomic<int64_t>, 3> nanoseconds_{};
};

using Times = std::shared_ptr<StageTimes>;

/// The same data set, its reading timed; whole batches where it reads those. Of a stream records
/// are read, and decoding is part of the transform.
std::shared_ptr<const data::Dataset> timed(std::shared_ptr<const data::Dataset> dataset,
                                           Times times);
std::shared_ptr<const data::StreamDataset> timed(std::shared_ptr<const data::StreamDataset> stream,
                                                 Times times);
/// The bytes of a file are read; decoding is part of the transform.
std::shared_ptr<const data::Dataset> timed(std::shared_ptr<const data::ImageFolder> folder,
                                           const data::ImageOptions& options, Times times);

/// Each with its time counted as a transform.
data::SampleTransform timed(data::SampleTransform transform, Times times);
data::BatchMap timed_map(data::BatchMap transform, Times times);
/// data::collate, timed.
data::Collate timed_collate(Times times);

}  // namespace bellows::train
