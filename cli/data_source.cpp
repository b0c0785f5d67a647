#include "cli/data_source.h"

#include <algorithm>
#include <array>
#include <optional>
#include <system_error>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/cifar.h"
#include "bellows/data/csv.h"
#include "bellows/data/idx.h"
#include "bellows/data/image.h"
#include "bellows/data/npy.h"
#include "bellows/data/tar_stream.h"
#include "bellows/data/tensor_dataset.h"

namespace bellows::cli {
namespace {

namespace fs = std::filesystem;
using data::TensorDataset;

bool there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) || fs::exists(path.string() + ".gz", ignored);
}

[[noreturn]] void fail_empty(const fs::path& path) {
  throw EnvironmentError(path.string() + ": got no samples, expected at least one");
}

OpenedData in_memory(TensorDataset dataset) {
  return {std::make_shared<TensorDataset>(std::move(dataset)), nullptr, {}};
}

OpenedData one_tensor(const fs::path& path, const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    throw EnvironmentError(path.string() +
                           ": got a single number, expected an array along whose first dimension "
                           "the samples lie");
  }
  if (tensor.size(0) == 0) fail_empty(path);
  return in_memory(TensorDataset({tensor}));
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator next(folder, error); !error && next != fs::directory_iterator();
       next.increment(error)) {
    entries.push_back(next->path());
  }
  if (error) throw FileError(folder, "list", error.value());
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::function<OpenedData()> tar_shard(const fs::path& path) {
  return [path] {
    const auto shard = std::make_shared<data::TarStream>(std::vector{path}, data::TarOptions{});
    if (shard->size() == 0) fail_empty(path);
    return OpenedData{nullptr, shard, {}};
  };
}

std::optional<DataSource> idx_set(const fs::path& root) {
  DataSource source{"IDX files", {}};
  for (const bool train : {true, false}) {
    if (!there(root / (train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte"))) continue;
    source.parts.push_back(
        {train ? "train" : "test", {[root, train] {
           constexpr int64_t kMostClasses = 256;
           return in_memory(data::read_idx_dataset(
               {.root = root, .train = train, .classes = kMostClasses, .bytes = true}));
         }}});
  }
  return source.parts.empty() ? std::nullopt : std::optional(source);
}

std::optional<DataSource> cifar_set(const fs::path& root) {
  const bool ten = there(root / "data_batch_1.bin");
  if (!ten && !there(root / "train.bin")) return std::nullopt;
  DataSource source{ten ? "CIFAR-10" : "CIFAR-100", {}};
  for (const bool train : {true, false}) {
    source.parts.push_back({train ? "train" : "test", {[=] {
                              return in_memory(data::read_cifar_dataset(
                                  {.root = root, .train = train, .classes = ten ? 10 : 100}));
                            }}});
  }
  return source;
}

std::optional<DataSource> tar_set(const fs::path& root) {
  DataSource source{"tar shards", {}};
  for (const fs::path& path : sorted_entries(root)) {
    if (!data::is_shard_name(path)) continue;
    const std::string name = path.filename().string();
    const auto word = std::find_if_not(name.begin(), name.end(),
                                       [](unsigned char c) { return std::isalpha(c) != 0; });
    const std::string part(name.begin(), word);  // "train" of train-0001.tar
    if (source.parts.empty() || source.parts.back().name != part)
      source.parts.push_back({part, {}});
    source.parts.back().files.push_back(tar_shard(path));
  }
  return source.parts.empty() ? std::nullopt : std::optional(source);
}

DataPart folder_part(const std::string& name, const fs::path& root) {
  return {name, {[root] {
            const auto folder = std::make_shared<data::ImageFolder>(root);
            return OpenedData{folder, nullptr, folder->classes()};
          }}};
}

std::optional<DataSource> image_folder(const fs::path& root) {
  DataSource source{"image folder", {}};
  std::error_code ignored;
  for (const char* name : {"train", "val", "test"}) {
    if (fs::is_directory(root / name, ignored))
      source.parts.push_back(folder_part(name, root / name));
  }
  if (!source.parts.empty()) return source;
  for (const fs::path& path : sorted_entries(root)) {
    if (!fs::is_directory(path, ignored)) continue;
    source.parts.push_back(folder_part("all", root));
    return source;
  }
  return std::nullopt;
}

std::optional<DataSource> csv_set(const fs::path& root, const std::string& target) {
  DataSource source{"CSV", {}};
  for (const char* name : {"train", "val", "test"}) {
    const fs::path path = root / (std::string(name) + ".csv");
    if (!there(path)) continue;
    source.parts.push_back(
        {name, {[=] { return in_memory(data::read_csv_dataset(path, target)); }}});
  }
  return source.parts.empty() ? std::nullopt : std::optional(source);
}

DataSource one_file(const fs::path& path, const std::string& target) {
  const std::string name = path.filename().string();
  const auto ends = [&](const char* ending) { return name.ends_with(ending); };
  if (data::is_shard_name(path)) return {"tar shard", {{"all", {tar_shard(path)}}}};
  if (ends(".csv") || ends(".csv.gz"))
    return {"CSV", {{"all", {[=] { return in_memory(data::read_csv_dataset(path, target)); }}}}};
  if (ends(".npy"))
    return {".npy array", {{"all", {[=] { return one_tensor(path, data::read_npy(path)); }}}}};
  if (ends("-ubyte") || ends("-ubyte.gz") || ends(".idx") || ends(".idx.gz"))
    return {"IDX file", {{"all", {[=] { return one_tensor(path, data::read_idx(path)); }}}}};
  throw ValueError(concat(path.string(),
                          ": cannot tell what it is by its name, expected one that "
                          "ends in .tar, .csv, .npy, -ubyte or .idx, or a folder"));
}

}  // namespace

DataSource find_data(const fs::path& path, const std::string& csv_target) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) throw ValueError(path.string() + ": no such file or folder");
  if (!fs::is_directory(path, ignored)) return one_file(path, csv_target);
  if (auto found = idx_set(path)) return *found;
  if (auto found = cifar_set(path)) return *found;
  if (auto found = tar_set(path)) return *found;
  if (auto found = csv_set(path, csv_target)) return *found;
  if (auto found = image_folder(path)) return *found;
  throw ValueError(
      concat(path.string(),
             ": found no data set, expected IDX or CIFAR files, tar shards, train.csv, "
             "or a folder for each class with images in it"));
}

}  // namespace bellows::cli
