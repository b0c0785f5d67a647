#include "bellows/data/byte_source.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <new>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <zlib.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

namespace fs = std::filesystem;

class FileSource : public ByteSource {
 public:
  // Nothing when there is no such file.
  static std::unique_ptr<FileSource> open(const fs::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd == -1 && (errno == ENOENT || errno == ENOTDIR)) return nullptr;
    if (fd == -1) throw FileError(path, "open", errno);
    return std::unique_ptr<FileSource>(new FileSource(path, fd));
  }
  ~FileSource() override { ::close(fd_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  // Fails where the file is a directory, a pipe or a device.
  void check_regular() {
    struct stat status {};
    if (::fstat(fd_, &status) == -1) throw FileError(path_, "stat", errno);
    if (S_ISDIR(status.st_mode)) throw FileError(path_, "read", EISDIR);
    if (!S_ISREG(status.st_mode)) {
      throw EnvironmentError(
          concat(path_.string(), ": is a pipe or a device, expected a regular file"));
    }
    size_ = static_cast<uint64_t>(status.st_size);
  }

  bool starts_as_gzip() const {
    std::array<unsigned char, 2> first{};
    return ::pread(fd_, first.data(), first.size(), 0) == 2 && first[0] == 0x1f && first[1] == 0x8b;
  }

  size_t read(std::span<std::byte> out) override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t got = ::read(fd_, out.data() + done, out.size() - done);
      if (got == -1 && errno == EINTR) continue;
      if (got == -1) throw FileError(path_, "read", errno);
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

  bool compressed() const override { return false; }
  uint64_t most_bytes() const override { return size_; }

 private:
  FileSource(fs::path path, int fd) : path_(std::move(path)), fd_(fd) {}

  fs::path path_;
  int fd_;
  uint64_t size_ = 0;
};

// One or more gzip members one after the other (RFC 1952), checksums verified.
class GzipSource : public ByteSource {
 public:
  explicit GzipSource(std::unique_ptr<ByteSource> compressed) : compressed_(std::move(compressed)) {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  size_t read(std::span<std::byte> out) override {
    size_t done = 0;
    while (done < out.size() && !ended_) done += inflate_into(out.subspan(done));
    return done;
  }

  bool compressed() const override { return true; }

  uint64_t most_bytes() const override {
    constexpr uint64_t kBestRatio = 1032;  // 258 bytes for two bits
    uint64_t most = 0;
    const bool overflow = __builtin_mul_overflow(compressed_->most_bytes(), kBestRatio, &most);
    return overflow ? std::numeric_limits<uint64_t>::max() : most;
  }

  std::string defect() const override { return defect_; }

 private:
  size_t inflate_into(std::span<std::byte> out) {
    if (stream_.avail_in == 0) refill();
    if (ended_) return 0;
    const auto room =
        static_cast<uInt>(std::min<size_t>(out.size(), std::numeric_limits<uInt>::max()));
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = room;
    inside_member_ = true;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    if (status == Z_STREAM_END) {
      inside_member_ = false;
      inflateReset(&stream_);
    } else if (status == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      end(concat("the gzip data are damaged: ",
                 stream_.msg != nullptr ? stream_.msg : zError(status)));
    }
    return room - stream_.avail_out;
  }

  // More input, or the end: a good one only between members.
  void refill() {
    const size_t got = compressed_->read(buffer_);
    if (got == 0) return end(inside_member_ ? "the gzip data are cut off" : "");
    stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    stream_.avail_in = static_cast<uInt>(got);
  }

  void end(std::string defect) {
    ended_ = true;
    defect_ = std::move(defect);
  }

  std::unique_ptr<ByteSource> compressed_;
  z_stream stream_{};
  std::array<std::byte, 1 << 16> buffer_;
  bool inside_member_ = false;
  bool ended_ = false;
  std::string defect_;
};

}  // namespace

OpenedFile open_maybe_gzip(const fs::path& path) {
  fs::path found = path;
  std::unique_ptr<FileSource> file = FileSource::open(found);
  if (file == nullptr) {
    found += ".gz";
    file = FileSource::open(found);
  }
  if (file == nullptr)
    throw FileError(path, "open (also as " + found.filename().string() + ")", ENOENT);
  file->check_regular();
  if (!file->starts_as_gzip()) return {found, std::move(file)};
  return {found, gunzip(std::move(file))};
}

std::unique_ptr<ByteSource> gunzip(std::unique_ptr<ByteSource> compressed) {
  return std::make_unique<GzipSource>(std::move(compressed));
}

}  // namespace bellows::data
