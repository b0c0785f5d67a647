// The table [data] of a configuration: which data set, how its samples are changed, how they are
// loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "bellows/core/options.h"
#include "bellows/data/augment.h"
#include "bellows/data/distributed_sampler.h"
#include "bellows/data/loader.h"
#include "bellows/train/data_stages.h"

namespace bellows::train {

/// The upper bound of settings that have none.
inline constexpr int64_t kMany = std::numeric_limits<int64_t>::max();

class DataTable {
 public:
  /// Reads every key, and nothing else. Throws ValueError for what is out of range.
  DataTable(Options& table, uint64_t seed);

  int64_t batch_size() const { return loading_.batch_size; }
  /// Loaders made from now on give batches on `device`, copied there ahead.
  void load_to(c10::Device device);
  /// Loaders made from now on have so many workers, in place of the table's.
  void set_workers(int64_t workers) { loading_.workers = workers; }
  int64_t workers() const { return loading_.workers; }
  /// Loaders made from now on give this rank's share: in training as many samples to each, the
  /// first ones twice where they do not come out even; in evaluation each sample once.
  void set_rank(int64_t rank, int64_t world_size) {
    ranks_.rank = rank;
    ranks_.world_size = world_size;
  }
  /// Loaders made from now on add up how long each stage takes.
  void measure(Times times) { times_ = std::move(times); }
  const std::string& dataset() const { return name_; }
  /// Batches {input, target} of inputs as the model takes them, target int64; probabilities [N,
  /// classes] in training where samples are mixed. Reads files: throws
  /// EnvironmentError where they are absent or damaged.
  std::unique_ptr<data::Loader> training() const;
  std::unique_ptr<data::Loader> evaluation();
  /// After `evaluation`: one of its samples, as a batch; and the number of classes.
  const Tree& example() const { return example_; }
  int64_t classes() const { return classes_; }

 private:
  // Samples by index, or one after the other.
  struct Source {
    std::shared_ptr<const data::Dataset> dataset;
    std::shared_ptr<const data::StreamDataset> stream;
    int64_t classes = 0;
    std::vector<std::string> names = {};  // of classes or columns, where the data have any
  };
  Source open(bool training) const;
  Source open_idx(bool training) const;
  Source open_cifar(bool training) const;
  Source open_folder(bool training) const;
  Source open_tar(bool training) const;
  Source open_csv(bool training) const;
  std::filesystem::path part(bool training, const std::string& suffix) const;
  data::ImageTransform image_transform(bool training) const;
  std::unique_ptr<data::Loader> load(const Source& source, bool training,
                                     const data::LoaderOptions& options) const;
  data::LoaderOptions loading(bool training) const;
  data::BatchTransform mixing() const;
  bool in_one_pass(bool training) const;
  bool normalised_when_read(bool training) const;
  bool has(const char* word) const;

  std::string name_;
  std::filesystem::path root_;
  int64_t limit_ = 0;
  int64_t classes_ = 0;
  std::vector<std::string> names_;
  int64_t image_size_ = 0;
  int64_t evaluation_batch_ = 0;
  int64_t shuffle_buffer_ = 0;
  bool reduced_decode_ = true;
  std::string target_;
  std::vector<std::string> augment_;
  int64_t padding_ = 0;
  double jitter_ = 0;
  double mixup_ = 0, cutmix_ = 0;  // alpha; 0: off
  std::vector<double> mean_, std_;
  data::LoaderOptions loading_;
  data::DistributedOptions ranks_;
  Times times_;  // null: not measured
  c10::Device device_{c10::kCPU};
  Tree example_;
};

}  // namespace bellows::train
