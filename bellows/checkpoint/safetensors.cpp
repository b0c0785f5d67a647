#include "bellows/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ops/empty.h>

#include "bellows/checkpoint/safetensors_header.h"
#include "bellows/checkpoint/safetensors_io.h"
#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// The step in which data is read or written and hashed: stays in the processor's cache in between.
constexpr size_t kChunkBytes = size_t{1} << 20;

struct TypeName {
  at::ScalarType type;
  std::string_view dtype;
};
constexpr std::array<TypeName, 19> kTypes = {{
    {at::kBool, "BOOL"},
    {at::kByte, "U8"},
    {at::kChar, "I8"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e8m0fnu, "F8_E8M0"},
    {at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
    {at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
    {at::kShort, "I16"},
    {at::kUInt16, "U16"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kInt, "I32"},
    {at::kUInt32, "U32"},
    {at::kFloat, "F32"},
    {at::kComplexFloat, "C64"},
    {at::kDouble, "F64"},
    {at::kLong, "I64"},
    {at::kUInt64, "U64"},
}};

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
  const auto found = std::ranges::find(kTypes, tensor.scalar_type(), &TypeName::type);
  if (found == kTypes.end()) {
    refuse("has type ", at::toString(tensor.scalar_type()),
           ", which the format lacks; convert it first");
  }
  return std::string(found->dtype);
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

class HashedOutput {
 public:
  explicit HashedOutput(const fs::path& path) : file_(path) {}

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto chunk = bytes.first(std::min(bytes.size(), kChunkBytes));
      hasher_.update(chunk);
      file_.write(chunk);
      bytes = bytes.subspan(chunk.size());
    }
  }
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  Digest finish() {
    file_.finish();
    return hasher_.digest();
  }

 private:
  OutputFile file_;
  Hasher hasher_;
};

class InputFile {
 public:
  explicit InputFile(const fs::path& path) : path_(path) {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ == -1) throw FileError(path, "open", errno);
    struct stat status = {};
    if (::fstat(fd_, &status) == -1) {
      const int code = errno;
      ::close(fd_);
      throw FileError(path, "stat", code);
    }
    size_ = static_cast<uint64_t>(status.st_size);
  }
  ~InputFile() { ::close(fd_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const { return size_; }

  // The next bytes of the file, which must be there.
  void read(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t got = ::read(fd_, bytes.data(), bytes.size());
      if (got == -1 && errno == EINTR) continue;
      if (got == -1) throw FileError(path_, "read", errno);
      if (got == 0) throw CorruptFileError(path_, "the file became shorter while it was read");
      bytes = bytes.subspan(static_cast<size_t>(got));
    }
  }

 private:
  fs::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

std::string read_header_text(const fs::path& path, InputFile& file) {
  if (file.size() < 8) {
    throw CorruptFileError(
        path, concat("got ", file.size(), " bytes, expected at least 8 (the header's length)"));
  }
  std::array<std::byte, 8> prefix;
  file.read(prefix);
  const auto length = std::bit_cast<uint64_t>(prefix);
  if (length > kMaxHeaderBytes || length > file.size() - 8) {
    throw CorruptFileError(path, concat("the header's length is ", length, ", expected at most ",
                                        std::min(kMaxHeaderBytes, file.size() - 8),
                                        "; not a safetensors file, or cut short"));
  }
  std::string text(length, '\0');
  file.read(std::as_writable_bytes(std::span(text)));
  return text;
}

void read_data(InputFile& file, std::span<std::byte> bytes, Hasher* hasher) {
  while (!bytes.empty()) {
    const auto chunk = hasher == nullptr ? bytes : bytes.first(std::min(bytes.size(), kChunkBytes));
    file.read(chunk);
    if (hasher != nullptr) hasher->update(chunk);
    bytes = bytes.subspan(chunk.size());
  }
}

NamedTensors read(const fs::path& path, Metadata* metadata, Hasher* hasher) {
  InputFile file(path);
  const std::string text = read_header_text(path, file);
  Header header = parse_header(path, text, file.size() - 8 - text.size());
  if (hasher != nullptr) {
    const uint64_t length = text.size();
    hasher->update(std::as_bytes(std::span(&length, 1)));
    hasher->update(std::as_bytes(std::span(text)));
  }
  NamedTensors tensors;
  tensors.reserve(header.entries.size());
  for (TensorEntry& entry : header.entries) {
    const auto type = std::ranges::find(kTypes, std::string_view(entry.dtype), &TypeName::dtype);
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(type->type));
    read_data(file, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()}, hasher);
    tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  if (metadata != nullptr) *metadata = std::move(header.metadata);
  return tensors;
}

}  // namespace

void write_safetensors(const fs::path& path, const NamedTensors& tensors,
                       const Metadata& metadata) {
  write_safetensors_hashed(path, tensors, metadata);
}

Digest write_safetensors_hashed(const fs::path& path, const NamedTensors& tensors,
                                const Metadata& metadata) {
  std::vector<Item> items = plan(tensors);
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

NamedTensors read_safetensors(const fs::path& path, Metadata* metadata) {
  return read(path, metadata, nullptr);
}

NamedTensors read_safetensors_hashed(const fs::path& path, const Digest& expected) {
  Hasher hasher;
  NamedTensors tensors = read(path, nullptr, &hasher);
  const Digest got = hasher.digest();
  if (got != expected) {
    throw CorruptFileError(path, concat("its checksum is ", hash_text(got.hash), ", expected ",
                                        hash_text(expected.hash), "; the file was damaged"));
  }
  return tensors;
}

}  // namespace bellows::checkpoint
