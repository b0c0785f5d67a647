#include <algorithm>
#include <bit>
#include <memory>
#include <set>

#include "bellows/checkpoint/safetensors_header.h"
#include "bellows/checkpoint/safetensors_io.h"
#include "bellows/checkpoint/safetensors_types.h"
#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"
#include "bellows/core/thread_pool.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;
using Bytes = std::span<const std::byte>;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

struct Item {
  TensorEntry entry;
  at::Tensor tensor;
};

TensorEntry entry_of(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const auto&... what) {
    throw ValueError(concat("safetensors: tensor '", name, "' ", what...));
  };
  if (!tensor.defined()) refuse("is undefined; leave it out");
  if (tensor.layout() != at::kStrided) refuse("is ", tensor.layout(), ", expected a dense tensor");
  const at::ScalarType type = tensor.scalar_type();
  const std::string_view dtype = dtype_name(type);
  if (dtype.empty()) {
    refuse("has type ", at::toString(type), ", which the format lacks; convert it first");
  }
  TensorEntry entry{.name = name, .dtype = std::string(dtype), .shape = tensor.sizes().vec()};
  if (const int64_t packed = values_per_element(type); packed > 1) {
    if (entry.shape.empty()) refuse("of type ", at::toString(type), " has no dimension");
    entry.shape.back() *= packed;
  }
  return entry;
}

// The file's order, with offsets. Throws ValueError.
std::vector<Item> plan(const NamedTensors& tensors) {
  std::vector<Item> items;
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadataKey) {
      throw ValueError(concat("safetensors: a tensor cannot be named '", name,
                              "', which the format reserves; rename it"));
    }
    if (!names.insert(name).second) {
      throw ValueError("safetensors: got two tensors named '" + name +
                       "', expected each name once");
    }
    items.push_back({entry_of(name, tensor), tensor});
  }
  std::ranges::sort(items, [](const Item& a, const Item& b) {
    const int left = dtype_rank(a.entry.dtype);
    const int right = dtype_rank(b.entry.dtype);
    return left != right ? left > right : a.entry.name < b.entry.name;
  });
  uint64_t position = 0;
  for (Item& item : items) {
    item.entry.begin = position;
    item.entry.end = position += static_cast<uint64_t>(item.tensor.nbytes());
  }
  return items;
}

std::vector<uint64_t> hash_blocks(Bytes bytes) {
  std::vector<uint64_t> blocks;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kBlockBytes))) {
    blocks.push_back(hash_of(bytes.first(std::min(bytes.size(), kBlockBytes))));
  }
  return blocks;
}

// Writes bytes and hashes them; what is long by a second thread meanwhile.
class HashedWriter {
 public:
  explicit HashedWriter(OutputFile& file) : file_(file) {}

  std::vector<uint64_t> write(Bytes bytes) {
    if (bytes.size() < kBlockBytes / 4) {
      file_.write(bytes);
      return hash_blocks(bytes);
    }
    if (helper_ == nullptr) helper_ = std::make_unique<ThreadPool>(1);
    auto hashed = helper_->submit([&] { return hash_blocks(bytes); });
    try {
      file_.write(bytes);
    } catch (...) {
      hashed.wait();
      throw;
    }
    return hashed.get();
  }

 private:
  OutputFile& file_;
  std::unique_ptr<ThreadPool> helper_;
};

class Writer {
 public:
  /// Refuses what cannot be written.
  Writer(const NamedTensors& tensors, const Metadata& metadata, Checksums checksums)
      : items_(plan(tensors)) {
    if (metadata.contains(kChecksumKey)) {
      throw ValueError(concat("safetensors: the metadata's key '", kChecksumKey,
                              "' is reserved for checksums; leave it out"));
    }
    header_.metadata = metadata;
    for (const Item& item : items_) header_.entries.push_back(item.entry);
    checksums_ = checksums == Checksums::yes && !items_.empty();
    text_ = format();
  }

  /// The header comes last: it holds the checksums, which are taken while the tensors are written,
  /// and without it nobody takes the file for whole.
  Digest write(OutputFile& file) {
    std::string prefix(8 + text_.size(), '\0');
    file.write(prefix);
    HashedWriter writer(file);
    for (size_t i = 0; i < items_.size(); ++i) {
      const at::Tensor& tensor = items_[i].tensor;
      const at::Tensor host =
          tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
      const auto blocks =
          writer.write({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
      values_[i] = checksum_of(header_.entries[i], blocks);
    }
    text_ = format();
    const uint64_t length = text_.size();
    file.write_at(0, std::as_bytes(std::span(&length, 1)));
    file.write_at(8, std::as_bytes(std::span(text_)));
    const uint64_t data = items_.empty() ? 0 : items_.back().entry.end;
    return {.bytes = 8 + length + data, .hash = hash_of(text_), .of = Digest::Of::header};
  }

 private:
  // With the checksums known so far: always of the same length.
  std::string format() {
    values_.resize(items_.size());
    if (checksums_) put_checksums(header_, values_);
    return format_header(header_);
  }

  std::vector<Item> items_;
  std::vector<uint64_t> values_;
  Header header_;
  bool checksums_ = false;
  std::string text_;
};

}  // namespace

void write_safetensors(const fs::path& path, const NamedTensors& tensors, const Metadata& metadata,
                       Checksums checksums) {
  Writer writer(tensors, metadata, checksums);
  replace_file(path, [&](OutputFile& file) { writer.write(file); });
}

Digest write_safetensors_hashed(const fs::path& path, const NamedTensors& tensors,
                                const Metadata& metadata) {
  Writer writer(tensors, metadata, Checksums::yes);
  OutputFile file(path);
  const Digest digest = writer.write(file);
  file.finish();
  return digest;
}

void check_writable(const NamedTensors& tensors) {
  Writer(tensors, {}, Checksums::yes);
}

}  // namespace bellows::checkpoint
