#include "bellows/core/file.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <random>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "bellows/core/error.h"

namespace bellows {
namespace {

namespace fs = std::filesystem;

constinit std::atomic<FileSystem*> file_system_in_tests{nullptr};

// Repeats a call for as long as a signal interrupts it.
template <class Call>
auto retry(Call call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

[[noreturn]] void fail(const fs::path& path, const char* operation) {
  throw FileError(path, operation, errno);
}

void sync_descriptor(int fd, const fs::path& path) {
  if (retry([&] { return file_system().fsync(fd); }) == -1) fail(path, "fsync");
}

// After EINTR the descriptor is gone all the same, so a close is never repeated.
void close_once(int fd, const fs::path& path) {
  if (file_system().close(fd) == -1 && errno != EINTR) fail(path, "close");
}

// The directory that holds the entry `path`, also for "name" and "name/".
fs::path parent_of(const fs::path& path) {
  const fs::path entry = path.has_filename() ? path : path.parent_path();
  const fs::path parent = entry.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// A name beside `path` that no other thread, process or host has; removed on destruction unless it
// has been renamed away.
class TemporaryName {
 public:
  explicit TemporaryName(const fs::path& path) : path_(path) {
    std::random_device random;
    std::array<char, 24> suffix;
    std::snprintf(suffix.data(), suffix.size(), ".tmp-%08x%08x", random(), random());
    path_ += suffix.data();
  }
  ~TemporaryName() {
    if (!renamed_) file_system().unlink(path_.c_str());
  }
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;

  void rename_to(const fs::path& path) {
    if (retry([&] { return file_system().rename(path_.c_str(), path.c_str()); }) == -1) {
      fail(path, "rename");
    }
    renamed_ = true;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool renamed_ = false;
};

// A pipe, a device or a directory is not to be replaced by a file.
void check_replaceable(const fs::path& path) {
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(path, ignored).type();
  if (type == fs::file_type::directory) throw FileError(path, "replace", EISDIR);
  if (type == fs::file_type::block || type == fs::file_type::character ||
      type == fs::file_type::fifo || type == fs::file_type::socket) {
    throw FileError(path, "replace (it is no regular file)", EINVAL);
  }
}

// False when it is there already.
bool make_directory(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return false;
  if (retry([&] { return file_system().mkdir(path.c_str(), 0777); }) == 0) return true;
  if (errno != EEXIST) fail(path, "mkdir");
  if (!fs::is_directory(path, ignored)) throw FileError(path, "mkdir", ENOTDIR);
  return false;
}

}  // namespace

int FileSystem::open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}
ssize_t FileSystem::write(int fd, const void* data, size_t bytes) {
  return ::write(fd, data, bytes);
}
ssize_t FileSystem::pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return ::pwrite(fd, data, bytes, offset);
}
int FileSystem::fsync(int fd) {
  return ::fsync(fd);
}
int FileSystem::close(int fd) {
  return ::close(fd);
}
int FileSystem::rename(const char* from, const char* to) {
  return ::rename(from, to);
}
int FileSystem::unlink(const char* path) {
  return ::unlink(path);
}
int FileSystem::mkdir(const char* path, mode_t mode) {
  return ::mkdir(path, mode);
}
int FileSystem::symlink(const char* target, const char* path) {
  return ::symlink(target, path);
}

FileSystem& file_system() {
  static FileSystem real;
  FileSystem* chosen = file_system_in_tests.load(std::memory_order_acquire);
  return chosen != nullptr ? *chosen : real;
}

ScopedFileSystem::ScopedFileSystem(FileSystem& replaced_by)
    : previous_(file_system_in_tests.exchange(&replaced_by)) {}
ScopedFileSystem::~ScopedFileSystem() {
  file_system_in_tests.store(previous_);
}

OutputFile::OutputFile(fs::path path, bool append) : path_(std::move(path)) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC);
  fd_ = retry([&] { return file_system().open(path_.c_str(), flags, 0666); });
  if (fd_ == -1) fail(path_, "open for writing");
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

OutputFile::~OutputFile() {
  if (fd_ != -1) file_system().close(fd_);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  write_all(bytes, [&](std::span<const std::byte> rest) {
    return file_system().write(fd_, rest.data(), rest.size());
  });
}

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  const size_t size = bytes.size();
  write_all(bytes, [&](std::span<const std::byte> rest) {
    const auto place = static_cast<off_t>(offset + (size - rest.size()));
    return file_system().pwrite(fd_, rest.data(), rest.size(), place);
  });
}

template <class Call>
void OutputFile::write_all(std::span<const std::byte> bytes, Call call) {
  if (fd_ == -1) throw FileError(path_, "write after close", EBADF);
  while (!bytes.empty()) {
    const ssize_t written = retry([&] { return call(bytes); });
    if (written == -1) fail(path_, "write");
    if (written == 0) throw FileError(path_, "write", ENOSPC);  // no progress: never loop on it
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void OutputFile::sync() {
  if (fd_ == -1) throw FileError(path_, "fsync after close", EBADF);
  sync_descriptor(fd_, path_);
}
void OutputFile::finish() {
  sync();
  close();
}

void OutputFile::close() {
  if (fd_ != -1) close_once(std::exchange(fd_, -1), path_);
}

std::string read_file(const fs::path& path) {
  const int fd = retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (fd == -1) fail(path, "open");
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  struct stat status = {};
  if (::fstat(fd, &status) == -1) fail(path, "stat");
  // One byte more than expected, so that the end shows without growing; sizes such as /proc's are
  // 0.
  std::string bytes(static_cast<size_t>(status.st_size) + 1, '\0');
  size_t filled = 0;
  for (;;) {
    if (filled == bytes.size()) bytes.resize(2 * bytes.size() + 4096);
    const ssize_t got =
        retry([&] { return ::read(fd, bytes.data() + filled, bytes.size() - filled); });
    if (got == -1) fail(path, "read");
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

void replace_file(const fs::path& path, const std::function<void(OutputFile&)>& write) {
  check_replaceable(path);
  TemporaryName temporary(path);
  try {
    OutputFile file(temporary.path());
    write(file);
    file.finish();
  } catch (const FileError& error) {
    if (error.path() != temporary.path()) throw;
    throw FileError(path, error.operation() + " (of its temporary file)", error.code());
  }
  temporary.rename_to(path);
  sync_directory(parent_of(path));
}

void write_file_atomically(const fs::path& path, std::string_view bytes) {
  replace_file(path, [&](OutputFile& file) { file.write(bytes); });
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (retry([&] { return file_system().rename(from.c_str(), to.c_str()); }) == -1) {
    fail(to, ("rename from " + from.string()).c_str());
  }
  sync_directory(parent_of(to));
  if (parent_of(from) != parent_of(to)) sync_directory(parent_of(from));
}

void make_directories(const fs::path& path) {
  fs::path prefix;
  for (const fs::path& part : path) {
    if (part.empty()) continue;  // a trailing slash
    prefix /= part;
    if (make_directory(prefix)) sync_directory(parent_of(prefix));
  }
}

void replace_symlink(const fs::path& target, const fs::path& path) {
  TemporaryName temporary(path);
  if (retry([&] { return file_system().symlink(target.c_str(), temporary.path().c_str()); }) ==
      -1) {
    fail(path, "symlink");
  }
  temporary.rename_to(path);
  sync_directory(parent_of(path));
}

void open_standard_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // A new descriptor gets the lowest number that is free: this one.
    if (::fcntl(fd, F_GETFD) == -1 && errno == EBADF)
      static_cast<void>(::open("/dev/null", O_RDWR));
  }
}

void sync_directory(const fs::path& path) {
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  const int fd = retry([&] { return file_system().open(path.c_str(), flags, 0); });
  if (fd == -1) fail(path, "open directory");
  const int result = retry([&] { return file_system().fsync(fd); });
  const int code = errno;
  file_system().close(fd);
  if (result == -1 && code != EINVAL) throw FileError(path, "fsync of the directory", code);
}

}  // namespace bellows
