#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "bellows/checkpoint/safetensors_header.h"
#include "bellows/checkpoint/safetensors_io.h"
#include "bellows/checkpoint/safetensors_types.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/core/thread_pool.h"
#include "bellows/formats/file_kind.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;

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

  // Bytes from `offset` on, which must be there. Any thread.
  void read(uint64_t offset, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t got = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (got == -1 && errno == EINTR) continue;
      if (got == -1) throw FileError(path_, "read", errno);
      if (got == 0) throw CorruptFileError(path_, "the file became shorter while it was read");
      bytes = bytes.subspan(static_cast<size_t>(got));
      offset += static_cast<uint64_t>(got);
    }
  }

 private:
  fs::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// The 8 bytes of its length, and the header.
std::string read_prefix(const fs::path& path, const InputFile& file) {
  if (file.size() < 8) {
    throw CorruptFileError(
        path, concat("got ", file.size(), " bytes, expected at least 8 (the header's length)"));
  }
  std::array<std::byte, 8> prefix;
  file.read(0, prefix);
  const auto length = std::bit_cast<uint64_t>(prefix);
  if (length > kMaxHeaderBytes || length > file.size() - 8) {
    throw CorruptFileError(path, concat("the header's length is ", length, ", expected at most ",
                                        std::min(kMaxHeaderBytes, file.size() - 8),
                                        "; not a safetensors file, or cut short"));
  }
  std::string text(8 + length, '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

// Where a stretch of the file goes.
struct Segment {
  uint64_t offset;
  std::span<std::byte> memory;
};

// Fills all segments, which lie one behind the other from the start of the file to its end, block
// by block, by as many threads as LibTorch uses; returns the hashes of the blocks, where asked for.
std::vector<uint64_t> read_blocks(const InputFile& file, const std::vector<Segment>& segments,
                                  bool hash) {
  const auto count = static_cast<int64_t>((file.size() + kBlockBytes - 1) / kBlockBytes);
  std::vector<uint64_t> hashes(hash ? static_cast<size_t>(count) : 0);
  const auto read_block = [&](int64_t block) {
    uint64_t position = static_cast<uint64_t>(block) * kBlockBytes;
    const uint64_t end = std::min<uint64_t>(position + kBlockBytes, file.size());
    auto segment = std::ranges::upper_bound(segments, position, {}, &Segment::offset) - 1;
    Xxh3 xxh3;
    for (; position < end; ++segment) {
      const uint64_t skipped = position - segment->offset;
      const auto rest = segment->memory.subspan(skipped);
      const auto piece = rest.first(std::min<uint64_t>(rest.size(), end - position));
      file.read(position, piece);
      if (hash) xxh3.update(piece);
      position += piece.size();
    }
    if (hash) hashes[static_cast<size_t>(block)] = xxh3.value();
  };
  const int64_t threads = std::min<int64_t>({at::get_num_threads(), count, 8});
  ThreadPool helpers(static_cast<int>(std::max<int64_t>(threads - 1, 0)));
  helpers.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) read_block(block);
  });
  return hashes;
}

NamedTensors read(const fs::path& path, Metadata* metadata, const Digest* expected) {
  const InputFile file(path);
  formats::refuse_other_kind(path, formats::FileKind::safetensors, "a safetensors file");
  std::string prefix = read_prefix(path, file);
  Header header =
      parse_header(path, std::string_view(prefix).substr(8), file.size() - prefix.size());
  std::vector<Segment> segments = {{0, std::as_writable_bytes(std::span(prefix))}};
  NamedTensors tensors;
  tensors.reserve(header.entries.size());
  for (TensorEntry& entry : header.entries) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(*dtype_from(entry.dtype)));
    if (tensor.nbytes() > 0) {
      segments.push_back({prefix.size() + entry.begin,
                          {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()}});
    }
    tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  const std::vector<uint64_t> blocks = read_blocks(file, segments, expected != nullptr);
  if (expected != nullptr) {
    const Digest got = digest_of(file.size(), blocks);
    if (got != *expected) {
      throw CorruptFileError(path, concat("its checksum is ", hash_text(got.hash), ", expected ",
                                          hash_text(expected->hash), "; the file was damaged"));
    }
  }
  if (metadata != nullptr) *metadata = std::move(header.metadata);
  return tensors;
}

}  // namespace

NamedTensors read_safetensors(const fs::path& path, Metadata* metadata) {
  return read(path, metadata, nullptr);
}

NamedTensors read_safetensors_hashed(const fs::path& path, const Digest& expected) {
  return read(path, nullptr, &expected);
}

}  // namespace bellows::checkpoint
