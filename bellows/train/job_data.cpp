#include "bellows/train/job_data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/cifar.h"
#include "bellows/data/csv.h"
#include "bellows/data/device_loader.h"
#include "bellows/data/idx.h"
#include "bellows/data/image.h"
#include "bellows/data/mix.h"
#include "bellows/data/tar_stream.h"
#include "bellows/data/transforms.h"
#include "bellows/device/memory.h"
#include "bellows/device/normalize.h"

namespace bellows::train {
namespace {

namespace fs = std::filesystem;

/// What a data set is where nothing else is said.
struct Defaults {
  const char* root;
  int64_t classes;
  int64_t image_size;  // 0: no images
  std::vector<double> mean, std;
};

const std::map<std::string, Defaults>& known_sets() {
  static const std::vector<double> photo_mean = {0.485, 0.456, 0.406},
                                   photo_std = {0.229, 0.224, 0.225};
  static const std::map<std::string, Defaults> sets = {
      {"fashion-mnist", {"/usr/share/datasets/fashion-mnist", 10, 28, {0.2860}, {0.3530}}},
      {"mnist", {"data/mnist", 10, 28, {0.1307}, {0.3081}}},
      {"cifar10",
       {"data/cifar-10-batches-bin", 10, 32, {0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}}},
      {"cifar100",
       {"data/cifar-100-binary", 100, 32, {0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}}},
      {"image-folder", {"data/images", 0, 224, photo_mean, photo_std}},
      {"tar", {"data/shards", 1000, 224, photo_mean, photo_std}},
      {"csv", {"data", 2, 0, {}, {}}}};
  return sets;
}

std::vector<std::string> set_names() {
  std::vector<std::string> names;
  for (const auto& [name, _] : known_sets()) names.push_back(name);
  return names;
}

bool is_idx(const std::string& name) {
  return name == "fashion-mnist" || name == "mnist";
}

// Bytes, or floats from 0 to 1, to what models take; one pass over bytes.
data::ImageTransform normaliser(std::vector<double> mean, std::vector<double> std) {
  return [mean = std::move(mean), std = std::move(std)](const at::Tensor& images, data::Random&) {
    if (images.is_floating_point()) return data::normalize_channels(images, mean, std);
    const auto channels = static_cast<size_t>(images.size(-3));
    const auto of_all = [&](const std::vector<double>& values) {
      std::vector<float> result(values.begin(), values.end());
      if (result.size() == 1) result.resize(channels, result[0]);
      return result;
    };
    return normalize(images, of_all(mean), of_all(std));
  };
}

// Classes of samples {…, class} lie below `classes`.
data::SampleTransform class_check(int64_t classes) {
  return [classes](Tree sample, data::Random&) {
    const int64_t label = sample[1].integer();
    if (label >= 0 && label < classes) return sample;
    throw EnvironmentError(concat("got class ", label, ", expected 0 to ", classes - 1,
                                  " (data.classes is ", classes, ")"));
  };
}

}  // namespace

DataTable::DataTable(Options& table, uint64_t seed) {
  name_ = table.get_one_of("dataset", "fashion-mnist", set_names());
  const Defaults& set = known_sets().at(name_);
  root_ = table.get<std::string>("root", set.root);
  limit_ = table.get_in<int64_t>("limit", 0, 0, kMany);
  classes_ = set.classes;
  if (name_ == "tar" || name_ == "csv")
    classes_ = table.get_in<int64_t>("classes", set.classes, 1, kMany);
  if (name_ == "csv") target_ = table.get<std::string>("target", "target");
  if (name_ == "tar") {
    shuffle_buffer_ = table.get_in<int64_t>("shuffle_buffer", 1000, 1, kMany);
    if (limit_ > 0) table.fail("limit", "has no effect on tar shards; leave it out");
  }
  loading_.batch_size = table.get_in<int64_t>("batch_size", 128, 1, kMany);
  const bool small = set.image_size < 64;
  evaluation_batch_ =
      table.get_in<int64_t>("evaluation_batch_size", small ? 1000 : loading_.batch_size, 1, kMany);
  loading_.workers = table.get_in<int64_t>("workers", 0, 0, 1024);
  loading_.prefetch = table.get_in<int64_t>("prefetch", 2, 1, 1024);
  loading_.drop_last = table.get<bool>("drop_last", false);
  constexpr double kMostSeconds = 3e7;
  loading_.timeout = std::chrono::milliseconds(
      std::llround(1000 * table.get_in<double>("timeout", 600, 0, kMostSeconds)));
  loading_.on_error = table.get_one_of("on_error", "raise", {"raise", "skip"}) == "skip"
                          ? data::OnError::skip
                          : data::OnError::raise;
  loading_.seed = seed;
  if (set.image_size == 0) return;
  image_size_ = set.image_size;
  if (!small) {
    image_size_ = table.get_in<int64_t>("image_size", set.image_size, 1, 1 << 16);
    reduced_decode_ = table.get<bool>("reduced_decode", true);
  }
  mean_ = table.get<std::vector<double>>("mean", set.mean);
  std_ = table.get<std::vector<double>>("std", set.std);
  for (const auto& [key, values] : {std::pair{"mean", mean_}, {"std", std_}}) {
    if (values.size() != 1 && values.size() != set.mean.size())
      table.fail(key, concat("got ", values.size(), " numbers, expected 1 or ", set.mean.size()));
  }
  if (std::any_of(std_.begin(), std_.end(), [](double value) { return !(value > 0); }))
    table.fail("std", "expected numbers above 0");
  const std::vector<std::string> words = {"crop", "flip", "jitter", "resized-crop"};
  augment_ = table.get<std::vector<std::string>>("augment", {});
  for (const std::string& word : augment_) {
    if (std::find(words.begin(), words.end(), word) == words.end()) {
      table.fail("augment", concat("got \"", word, "\", expected some of ", join(words)));
    }
  }
  if (has("crop")) padding_ = table.get_in<int64_t>("crop_padding", 4, 0, 1 << 16);
  if (has("jitter")) jitter_ = table.get_in<double>("jitter", 0.4, 0, 100);
  constexpr double kMostAlpha = 1e6;
  mixup_ = table.get_in<double>("mixup", 0, 0, kMostAlpha);
  cutmix_ = table.get_in<double>("cutmix", 0, 0, kMostAlpha);
}

bool DataTable::has(const char* word) const {
  return std::find(augment_.begin(), augment_.end(), word) != augment_.end();
}

// Images in memory that are only cropped, flipped and normalised: whole batches of bytes.
bool DataTable::in_one_pass(bool training) const {
  const bool cifar = name_ == "cifar10" || name_ == "cifar100";
  if (training && (has("jitter") || has("resized-crop"))) return false;
  return cifar || (is_idx(name_) && !normalised_when_read(training));
}

// Images that do not change are normalised once.
bool DataTable::normalised_when_read(bool training) const {
  return is_idx(name_) && (!training || augment_.empty());
}

data::ImageTransform DataTable::image_transform(bool training) const {
  std::vector<data::ImageTransform> steps;
  const bool photographs = image_size_ >= 64 || name_ == "image-folder" || name_ == "tar";
  if (training && has("resized-crop")) {
    steps.push_back(data::random_resized_crop(image_size_, image_size_));
  } else if (photographs) {
    // As torchvision's reference evaluation: the shorter side to 256 for 224, then the middle.
    const int64_t shorter = std::max(image_size_, image_size_ * 256 / 224);
    steps.push_back([=, size = image_size_](const at::Tensor& image, data::Random&) {
      return data::center_crop(data::resize_shorter(image, shorter), size, size);
    });
  }
  if (training && has("crop"))
    steps.push_back(data::random_crop(image_size_, image_size_, padding_));
  if (training && has("flip")) steps.push_back(data::random_horizontal_flip());
  if (training && has("jitter")) {
    steps.push_back(data::colour_jitter(
        {.brightness = jitter_, .contrast = jitter_, .saturation = jitter_, .hue = 0}));
  }
  return steps.empty() ? nullptr : data::compose(std::move(steps));
}

fs::path DataTable::part(bool training, const std::string& suffix) const {
  if (training) return root_ / ("train" + suffix);
  const fs::path test = root_ / ("test" + suffix);
  const fs::path validation = root_ / ("val" + suffix);
  std::error_code ignored;
  return !fs::exists(test, ignored) && fs::exists(validation, ignored) ? validation : test;
}

DataTable::Source DataTable::open_idx(bool training) const {
  data::IdxDatasetOptions idx{.root = root_, .train = training, .limit = training ? limit_ : 0};
  idx.bytes = in_one_pass(training);
  // From 0 to 1 where they are normalised after augmentation, batch by batch.
  idx.mean = normalised_when_read(training) ? mean_[0] : 0;
  idx.std = normalised_when_read(training) ? std_[0] : 1;
  return {std::make_shared<data::TensorDataset>(data::read_idx_dataset(idx)), nullptr, idx.classes};
}

DataTable::Source DataTable::open_cifar(bool training) const {
  return {
      std::make_shared<data::TensorDataset>(data::read_cifar_dataset(
          {.root = root_, .train = training, .classes = classes_, .limit = training ? limit_ : 0})),
      nullptr, classes_};
}

DataTable::Source DataTable::open_folder(bool training) const {
  data::ImageOptions image;
  if (reduced_decode_ && !(training && has("resized-crop")))
    image.least_height = image.least_width = std::max(image_size_, image_size_ * 256 / 224);
  const auto folder = std::make_shared<data::ImageFolder>(part(training, ""), image);
  Source source{folder, nullptr, std::ssize(folder->classes()), folder->classes()};
  if (times_) source.dataset = timed(folder, image, times_);
  if (training && limit_ > 0 && limit_ < folder->size()) {
    source.dataset = data::subset(source.dataset, data::SequentialSampler(limit_).indices(0));
  }
  return source;
}

DataTable::Source DataTable::open_tar(bool training) const {
  std::vector<fs::path> shards;
  std::error_code error;
  fs::directory_iterator entries(root_, error);
  const std::vector<std::string> prefixes =
      training ? std::vector<std::string>{"train"} : std::vector<std::string>{"test", "val"};
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string file = entries->path().filename().string();
    const bool wanted = std::any_of(prefixes.begin(), prefixes.end(),
                                    [&](const auto& prefix) { return file.starts_with(prefix); });
    if (wanted && data::is_shard_name(file)) shards.push_back(entries->path());
  }
  if (error) throw FileError(root_, "list", error.value());
  if (shards.empty()) {
    throw EnvironmentError(concat(root_.string(), ": got no shards, expected files ",
                                  join(prefixes, "*.tar or "), "*.tar"));
  }
  std::sort(shards.begin(), shards.end());
  data::TarOptions options{.fields = {"jpg;jpeg;png", "cls"},
                           .shuffle = training,
                           .shuffle_buffer = shuffle_buffer_,
                           .seed = loading_.seed,
                           .ranks = ranks_};
  options.ranks.uneven = training ? data::Uneven::pad : data::Uneven::keep;
  if (reduced_decode_ && !(training && has("resized-crop")))
    options.image.least_height = options.image.least_width =
        std::max(image_size_, image_size_ * 256 / 224);
  const std::shared_ptr<const data::StreamDataset> stream =
      std::make_shared<data::TarStream>(shards, options);
  return {nullptr, data::map(stream, class_check(classes_)), classes_};
}

DataTable::Source DataTable::open_csv(bool training) const {
  const fs::path path = part(training, ".csv");
  std::vector<std::string> columns;
  auto table =
      std::make_shared<data::TensorDataset>(data::read_csv_dataset(path, target_, {}, &columns));
  const at::Tensor& targets = table->tensors()[1];
  const bool whole = targets.scalar_type() == at::kLong;
  if (!whole || targets.min().item<int64_t>() < 0 || targets.max().item<int64_t>() >= classes_) {
    throw EnvironmentError(
        concat(path.string(), ": column ", target_, ": got ",
               whole ? "values out of range" : "values that are no whole numbers",
               ", expected classes from 0 to ", classes_ - 1, " (data.classes is ", classes_, ")"));
  }
  Source source{table, nullptr, classes_, columns};
  if (training && limit_ > 0 && limit_ < table->size()) {
    source.dataset = std::make_shared<data::TensorDataset>(std::vector<at::Tensor>{
        table->tensors()[0].narrow(0, 0, limit_), targets.narrow(0, 0, limit_)});
  }
  return source;
}

DataTable::Source DataTable::open(bool training) const {
  Source source = is_idx(name_)             ? open_idx(training)
                  : name_ == "image-folder" ? open_folder(training)
                  : name_ == "tar"          ? open_tar(training)
                  : name_ == "csv"          ? open_csv(training)
                                            : open_cifar(training);
  if (times_ && source.stream) source.stream = timed(source.stream, times_);
  if (times_ && source.dataset && name_ != "image-folder")  // which times itself
    source.dataset = timed(source.dataset, times_);
  if (in_one_pass(training)) {
    data::CropFlipOptions options{.mean = mean_, .std = std_};
    if (training && has("crop")) {
      options.height = options.width = image_size_;
      options.padding = padding_;
    }
    if (training && has("flip")) options.flip_probability = 0.5;
    auto transform = data::random_crop_flip_normalize(options);
    if (times_) transform = timed_map(std::move(transform), times_);
    source.dataset = data::map_batches(
        std::dynamic_pointer_cast<const data::BatchDataset>(source.dataset), std::move(transform));
    return source;
  }
  const auto change = image_size_ > 0 ? image_transform(training) : nullptr;
  if (!change) return source;
  auto transform = data::on_image(change);
  if (times_) transform = timed(std::move(transform), times_);
  if (source.dataset) source.dataset = data::map(source.dataset, transform);
  if (source.stream) source.stream = data::map(source.stream, transform);
  return source;
}

void DataTable::load_to(c10::Device device) {
  device_ = device;
  loading_.memory = pinned_memory(device);
}

// Null where batches are left as they are. Of two ways to mix, each batch draws one.
data::BatchTransform DataTable::mixing() const {
  std::vector<data::BatchTransform> ways;
  if (mixup_ > 0) ways.push_back(data::random_mixup(classes_, mixup_));
  if (cutmix_ > 0) ways.push_back(data::random_cutmix(classes_, cutmix_));
  if (ways.empty()) return nullptr;
  return [ways = std::move(ways)](Tree batch, data::Random& random) {
    const auto way = static_cast<size_t>(random.below(std::ssize(ways)));
    return ways[way](std::move(batch), random);
  };
}

data::LoaderOptions DataTable::loading(bool training) const {
  data::LoaderOptions options = loading_;
  if (!training) {
    options.batch_size = evaluation_batch_;
    options.drop_last = false;
  }
  if (image_size_ > 0 && !in_one_pass(training) && !normalised_when_read(training))
    options.on_batch = data::on_images(normaliser(mean_, std_));
  if (const auto mix = training ? mixing() : nullptr) {
    options.on_batch = [first = options.on_batch, mix](Tree batch, data::Random& random) {
      return mix(first ? first(std::move(batch), random) : std::move(batch), random);
    };
  }
  if (times_) {
    options.collate = timed_collate(times_);
    if (options.on_batch) options.on_batch = timed(options.on_batch, times_);
  }
  return options;
}

std::unique_ptr<data::Loader> DataTable::load(const Source& source, bool training,
                                              const data::LoaderOptions& options) const {
  if (source.stream) return data::make_loader(source.stream, options);
  const int64_t size = source.dataset->size();
  std::shared_ptr<const data::Sampler> order = std::make_shared<data::SequentialSampler>(size);
  if (training) order = std::make_shared<data::RandomSampler>(size, loading_.seed);
  if (ranks_.world_size > 1) {
    auto ranks = ranks_;
    ranks.uneven = training ? data::Uneven::pad : data::Uneven::keep;
    order = std::make_shared<data::DistributedSampler>(order, ranks);
  }
  return data::make_loader(source.dataset, order, options);
}

std::unique_ptr<data::Loader> DataTable::training() const {
  const Source source = open(/*training=*/true);
  if (source.names != names_) {
    // A class's number is its place among the names: another set of names shifts them. So it is
    // with a column.
    const bool table = name_ == "csv";
    const char* suffix = table ? ".csv" : "";
    throw EnvironmentError(
        concat(part(true, suffix).string(), ": got ", table ? "columns " : "classes ",
               join(source.names), ", expected those of ", part(false, suffix).string(), ": ",
               join(names_), table ? ", in that order" : "; give each class a folder in both"));
  }
  return data::to_device(load(source, /*training=*/true, loading(true)), device_);
}

std::unique_ptr<data::Loader> DataTable::evaluation() {
  const Source source = open(/*training=*/false);
  classes_ = source.classes;
  names_ = source.names;
  data::LoaderOptions one = loading(false);
  one.batch_size = 1;
  one.workers = 0;
  const auto ranks = std::exchange(ranks_, {});  // whose share may be empty
  const Source whole = source.stream && ranks.world_size > 1 ? open(/*training=*/false) : source;
  auto first = load(whole, /*training=*/false, one)->next();
  ranks_ = ranks;
  if (!first) throw EnvironmentError("data: got no evaluation sample that can be read");
  example_ = std::move(first->data);
  return data::to_device(load(source, /*training=*/false, loading(false)), device_);
}

}  // namespace bellows::train
