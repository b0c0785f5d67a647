#include "bellows/checkpoint/weights_file.h"

#include <algorithm>
#include <set>

#include "bellows/checkpoint/contents.h"
#include "bellows/checkpoint/manifest.h"
#include "bellows/checkpoint/safetensors_io.h"
#include "bellows/checkpoint/safetensors_types.h"
#include "bellows/checkpoint/slices.h"
#include "bellows/checkpoint/torch_scalar_types.h"
#include "bellows/checkpoint/torch_tensors.h"
#include "bellows/core/error.h"
#include "bellows/core/printable.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;
using formats::FileKind;

constexpr size_t kPiece = 4 << 20;

// Counts what has been checked, for whoever watches.
class Meter {
 public:
  Meter(const WeightsFile::Progress& progress, uint64_t all) : progress_(progress), all_(all) {}
  void add(uint64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(done_, all_);
  }

 private:
  const WeightsFile::Progress& progress_;
  uint64_t done_ = 0, all_;
};

// Calls visit(bytes) for a stretch of a file, piece by piece.
template <class Visit>
void for_each_piece(const formats::InputBytes& file, uint64_t offset, uint64_t bytes, Meter& meter,
                    const Visit& visit) {
  std::vector<std::byte> piece(std::min<uint64_t>(bytes, kPiece));
  while (bytes > 0) {
    const auto part = std::span(piece).first(std::min<uint64_t>(bytes, piece.size()));
    file.read(offset, part);
    visit(std::span<const std::byte>(part));
    offset += part.size();
    bytes -= part.size();
    meter.add(part.size());
  }
}

class TorchWeights final : public WeightsFile {
 public:
  TorchWeights(const fs::path& path, FileKind kind, std::string_view select)
      : tensors_(path, kind), named_(tensors_.named(tensors_.select(select))) {
    kind_ = kind;
    for (const auto& [name, value] : named_) {
      const auto& own = tensors_.contents().heap.tensor(value);
      const formats::TorchType& type = formats::kTorchTypes[own.type];
      int64_t bytes = type.bytes;
      for (const int64_t size : own.sizes) bytes *= size;
      entries_.push_back({name, std::string(type.dtype), own.sizes, bytes});
    }
  }

  at::Tensor read(size_t index) override { return tensors_.tensor(named_.at(index).second); }

  bool has_checksums() const override { return tensors_.has_checksums(); }

  std::vector<std::string> damage(const Progress& progress) override {
    std::vector<std::string> damaged;
    if (!has_checksums()) return damaged;
    Meter meter(progress, tensors_.file().size());
    for (const auto& [name, entry] : tensors_.directory()) {
      if (entry.compressed) continue;  // source text
      uint32_t crc = 0;
      for_each_piece(tensors_.file(), entry.offset, entry.bytes, meter,
                     [&](auto piece) { crc = formats::crc32_of(piece, crc); });
      if (crc == entry.crc32) continue;
      damaged.push_back(formats::crc32_fault(name + users_of(name), crc, entry.crc32));
    }
    return damaged;
  }

 private:
  // " (tensor fc.weight)".
  std::string users_of(const std::string& entry) const {
    const auto& heap = tensors_.contents().heap;
    for (const auto& [name, value] : named_) {
      const std::string& key = heap.storages()[heap.tensor(value).storage].key;
      if (entry.ends_with("data/" + key)) return " (tensor " + name + ")";
    }
    return "";
  }

  TorchTensors tensors_;
  std::vector<std::pair<std::string, formats::pickle::Value>> named_;
};

// "float32"; of types that LibTorch lacks, the format's own name.
std::string type_name(const TensorEntry& entry) {
  const auto type = dtype_from(entry.dtype);
  return type ? std::string(torch_type_name(*type)) : entry.dtype;
}

// As LibTorch has it: of the packed F4, the last dimension is half of the file's.
std::vector<int64_t> shape_of(const TensorEntry& entry) {
  std::vector<int64_t> shape = entry.shape;
  const auto type = dtype_from(entry.dtype);
  const int64_t packed = type ? values_per_element(*type) : 1;
  if (!shape.empty() && shape.back() % packed == 0) shape.back() /= packed;
  return shape;
}

// Compares each tensor with its checksum; names those that are damaged.
void check_tensors(const SafetensorsFile& file, Meter& meter, std::vector<std::string>& damaged) {
  for (const TensorEntry& entry : file.entries()) {
    try {
      file.verify(entry.name);
    } catch (const CorruptFileError& error) {
      damaged.emplace_back(error.what());
    }
    meter.add(entry.end - entry.begin);
  }
}

class SafetensorsWeights final : public WeightsFile {
 public:
  explicit SafetensorsWeights(const fs::path& path) : file_(path) {
    kind_ = FileKind::safetensors;
    metadata_ = file_.metadata();
    for (const TensorEntry& entry : file_.entries()) {
      entries_.push_back({entry.name, type_name(entry), shape_of(entry),
                          static_cast<int64_t>(entry.end - entry.begin)});
    }
  }

  at::Tensor read(size_t index) override { return file_.tensor(entries_.at(index).name); }

  bool has_checksums() const override { return file_.has_checksums(); }
  std::vector<std::string> damage(const Progress& progress) override {
    std::vector<std::string> damaged;
    Meter meter(progress, std::filesystem::file_size(file_.path()));
    if (has_checksums()) check_tensors(file_, meter, damaged);
    return damaged;
  }

 private:
  SafetensorsFile file_;
};

// The model of a checkpoint, whose headers are checked when it is opened (of version 1, all bytes);
// damage of all its files.
class CheckpointWeights final : public WeightsFile {
 public:
  explicit CheckpointWeights(const fs::path& directory)
      : directory_(directory), manifest_(read_manifest(directory)) {
    kind_ = FileKind::checkpoint_directory;
    for (const std::string& name : model().files) {
      const SafetensorsFile& file =
          files_.emplace_back(open_safetensors_hashed(directory / name, manifest_.files.at(name)));
      metadata_.insert(file.metadata().begin(), file.metadata().end());
      for (const TensorEntry& entry : file.entries()) add(entry);
    }
  }

  at::Tensor read(size_t index) override {
    const std::string& name = entries_.at(index).name;
    const auto sliced = model().sliced.find(name);
    if (sliced == model().sliced.end()) {
      const auto file = std::ranges::find_if(
          files_, [&](const SafetensorsFile& each) { return each.contains(name); });
      return file->tensor(name);
    }
    uint64_t bytes = 0;
    for (const auto& [file, digest] : manifest_.files) bytes += digest.bytes;
    const std::map<std::string, SlicedTensor> one = {*sliced};
    SliceAssembly slices(directory_ / kManifestName, one, bytes);
    for (size_t i = 0; i < files_.size(); ++i) {
      if (files_[i].contains(name)) slices.take(model().files[i], name, files_[i].tensor(name));
    }
    return slices.finish()[0].second;
  }

  std::vector<std::string> damage(const Progress& progress) override {
    std::vector<std::string> damaged;
    uint64_t all = 0;
    for (const auto& [name, digest] : manifest_.files) all += digest.bytes;
    Meter meter(progress, all);
    for (const auto& [name, expected] : manifest_.files) {
      try {
        check_tensors(open_safetensors_hashed(directory_ / name, expected), meter, damaged);
      } catch (const CorruptFileError& error) {
        damaged.emplace_back(error.what());
      }
    }
    return damaged;
  }

 private:
  const Part& model() const { return manifest_.parts.at(kModelPart); }

  // A tensor that lies in slices comes once, whole.
  void add(const TensorEntry& entry) {
    const auto sliced = model().sliced.find(entry.name);
    if (sliced == model().sliced.end()) {
      entries_.push_back({entry.name, type_name(entry), shape_of(entry),
                          static_cast<int64_t>(entry.end - entry.begin)});
      return;
    }
    const auto seen = std::ranges::find(entries_, entry.name, &WeightEntry::name);
    const auto bytes = static_cast<int64_t>(entry.end - entry.begin);
    if (seen != entries_.end()) {
      seen->bytes += bytes;
    } else {
      entries_.push_back({entry.name, type_name(entry), sliced->second.shape, bytes});
    }
  }

  fs::path directory_;
  Manifest manifest_;
  std::vector<SafetensorsFile> files_;
};

}  // namespace

void WeightsFile::check_names(const fs::path& path) const {
  std::set<std::string_view> names;
  for (const WeightEntry& entry : entries_) {
    if (names.insert(entry.name).second) continue;
    throw ValueError(path.string() + ": two tensors come under the name '" + printable(entry.name) +
                     "', expected each name once; take a part of the file");
  }
}

std::unique_ptr<WeightsFile> open_weights_file(const fs::path& path, std::string_view select) {
  const FileKind kind = formats::kind_of(path);
  switch (kind) {
    case FileKind::torch_save:
    case FileKind::torch_save_legacy:
    case FileKind::torchscript:
    case FileKind::libtorch_archive:
      return std::make_unique<TorchWeights>(path, kind, select);
    case FileKind::checkpoint_directory:
    case FileKind::safetensors:
      if (!select.empty()) {
        throw ValueError(concat(path.string(), ": is ", formats::name(kind),
                                ", which has no parts to select ('", select, "')"));
      }
      if (kind == FileKind::safetensors) return std::make_unique<SafetensorsWeights>(path);
      return std::make_unique<CheckpointWeights>(path);
    default:
      formats::refuse_kind(path, kind, "a file of weights");
  }
}

NamedTensors read_weights_file(const fs::path& path, std::string_view select) {
  const std::unique_ptr<WeightsFile> file = open_weights_file(path, select);
  file->check_names(path);
  NamedTensors tensors;
  for (size_t i = 0; i < file->entries().size(); ++i) {
    tensors.emplace_back(file->entries()[i].name, file->read(i).detach());
  }
  return tensors;
}

}  // namespace bellows::checkpoint
