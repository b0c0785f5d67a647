#include <algorithm>
#include <bit>
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

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

struct Item {
  TensorEntry entry;
  at::Tensor tensor;
};

std::string dtype_of(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const auto&... what) {
    throw ValueError(concat("safetensors: tensor '", name, "' ", what...));
  };
  if (!tensor.defined()) refuse("is undefined; leave it out");
  if (tensor.layout() != at::kStrided) refuse("is ", tensor.layout(), ", expected a dense tensor");
  const std::string_view dtype = dtype_name(tensor.scalar_type());
  if (dtype.empty()) {
    refuse("has type ", at::toString(tensor.scalar_type()),
           ", which the format lacks; convert it first");
  }
  return std::string(dtype);
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
    std::string dtype = dtype_of(name, tensor);
    items.push_back(
        {{.name = name, .dtype = std::move(dtype), .shape = tensor.sizes().vec()}, tensor});
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

// Hashes what it writes; large pieces in a second thread, while they are written.
class HashedOutput {
 public:
  explicit HashedOutput(const fs::path& path) : file_(path) {}

  void write(std::span<const std::byte> bytes) {
    if (bytes.size() < kBlockBytes) {
      hasher_.update(bytes);
      file_.write(bytes);
      return;
    }
    if (helper_ == nullptr) helper_ = std::make_unique<ThreadPool>(1);
    std::future<void> hashed = helper_->submit([&] { hasher_.update(bytes); });
    try {
      file_.write(bytes);
    } catch (...) {
      hashed.wait();
      throw;
    }
    hashed.get();
  }
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  Digest finish() {
    file_.finish();
    return hasher_.digest();
  }

 private:
  OutputFile file_;
  Hasher hasher_;
  std::unique_ptr<ThreadPool> helper_;
};

}  // namespace

void write_safetensors(const fs::path& path, const NamedTensors& tensors,
                       const Metadata& metadata) {
  write_safetensors_hashed(path, tensors, metadata);
}

Digest write_safetensors_hashed(const fs::path& path, const NamedTensors& tensors,
                                const Metadata& metadata) {
  const std::vector<Item> items = plan(tensors);
  Header header{.entries = {}, .metadata = metadata};
  for (const Item& item : items) header.entries.push_back(item.entry);
  const std::string text = format_header(header);
  const uint64_t length = text.size();

  HashedOutput file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const Item& item : items) {
    const at::Tensor host =
        item.tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
    file.write({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  }
  return file.finish();
}

}  // namespace bellows::checkpoint
