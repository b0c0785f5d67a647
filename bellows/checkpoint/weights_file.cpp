#include "bellows/checkpoint/weights_file.h"

#include <algorithm>
#include <array>

#include <ATen/ops/empty.h>
#include <zlib.h>

#include "bellows/checkpoint/manifest.h"
#include "bellows/checkpoint/safetensors_header.h"
#include "bellows/checkpoint/safetensors_types.h"
#include "bellows/checkpoint/torch_scalar_types.h"
#include "bellows/checkpoint/torch_tensors.h"
#include "bellows/core/error.h"
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

  // None in legacy files; all 0 after Python's torch.serialization.set_crc32_options(False).
  bool has_checksums() const override {
    return std::ranges::any_of(tensors_.directory(),
                               [](const auto& entry) { return entry.second.crc32 != 0; });
  }

  std::vector<std::string> damage(const Progress& progress) override {
    std::vector<std::string> damaged;
    if (!has_checksums()) return damaged;
    Meter meter(progress, tensors_.file().size());
    for (const auto& [name, entry] : tensors_.directory()) {
      if (entry.compressed) continue;  // source text
      uLong crc = ::crc32(0, nullptr, 0);
      for_each_piece(tensors_.file(), entry.offset, entry.bytes, meter, [&](auto piece) {
        crc = ::crc32(crc, reinterpret_cast<const Bytef*>(piece.data()),
                      static_cast<uInt>(piece.size()));
      });
      if (crc == entry.crc32) continue;
      damaged.push_back(concat("entry ", name, users_of(name), ": its CRC-32 is ", std::hex, crc,
                               ", expected ", entry.crc32));
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

class SafetensorsWeights final : public WeightsFile {
 public:
  SafetensorsWeights(const fs::path& path, FileKind kind) : file_(path) {
    kind_ = kind;
    uint64_t length = 0;
    if (file_.size() < sizeof(length)) throw CorruptFileError(path, "safetensors: cut short");
    file_.read(0, std::as_writable_bytes(std::span(&length, 1)));
    if (length > kMaxHeaderBytes || length > file_.size() - sizeof(length)) {
      throw CorruptFileError(path, concat("the header's length is ", length,
                                          ", which does not fit; the file was cut or damaged"));
    }
    data_ = sizeof(length) + length;
    header_ = parse_header(path, file_.text(sizeof(length), length), file_.size() - data_);
    metadata_ = header_.metadata;
    for (const TensorEntry& entry : header_.entries) {
      const std::string_view type = torch_type_name(*dtype_from(entry.dtype));
      entries_.push_back({entry.name, std::string(type), entry.shape,
                          static_cast<int64_t>(entry.end - entry.begin)});
    }
  }

  at::Tensor read(size_t index) override {
    const TensorEntry& entry = header_.entries.at(index);
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(*dtype_from(entry.dtype)));
    if (tensor.nbytes() > 0) {
      file_.read(data_ + entry.begin,
                 {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
    }
    return tensor;
  }

  bool has_checksums() const override { return false; }
  std::vector<std::string> damage(const Progress&) override { return {}; }

 private:
  formats::InputFile file_;
  uint64_t data_ = 0;
  Header header_;
};

// The model's file of a checkpoint; damage of all its files.
class CheckpointWeights final : public WeightsFile {
 public:
  explicit CheckpointWeights(const fs::path& directory)
      : directory_(directory),
        manifest_(read_manifest(directory)),
        model_(directory / "model.safetensors", FileKind::checkpoint_directory) {
    kind_ = FileKind::checkpoint_directory;
    entries_ = model_.entries();
    metadata_ = model_.metadata();
  }

  at::Tensor read(size_t index) override { return model_.read(index); }

  std::vector<std::string> damage(const Progress& progress) override {
    std::vector<std::string> damaged;
    uint64_t all = 0;
    for (const auto& [name, digest] : manifest_.files) all += digest.bytes;
    Meter meter(progress, all);
    for (const auto& [name, expected] : manifest_.files) {
      const formats::InputFile file(directory_ / name);
      Hasher hasher;
      for_each_piece(file, 0, file.size(), meter, [&](auto piece) { hasher.update(piece); });
      if (hasher.digest() == expected) continue;
      damaged.push_back(concat(name, ": its checksum is ", hash_text(hasher.digest().hash),
                               ", expected ", hash_text(expected.hash)));
    }
    return damaged;
  }

 private:
  fs::path directory_;
  Manifest manifest_;
  SafetensorsWeights model_;
};

}  // namespace

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
      if (kind == FileKind::safetensors) return std::make_unique<SafetensorsWeights>(path, kind);
      return std::make_unique<CheckpointWeights>(path);
    default:
      formats::refuse_kind(path, kind, "a file of weights");
  }
}

NamedTensors read_weights_file(const fs::path& path, std::string_view select) {
  const std::unique_ptr<WeightsFile> file = open_weights_file(path, select);
  NamedTensors tensors;
  for (size_t i = 0; i < file->entries().size(); ++i) {
    tensors.emplace_back(file->entries()[i].name, file->read(i).detach());
  }
  return tensors;
}

}  // namespace bellows::checkpoint
