#include "bellows/formats/input_bytes.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::formats {

void InputBytes::check(uint64_t offset, uint64_t count) const {
  if (offset <= size() && count <= size() - offset) return;
  throw CorruptFileError(path_, concat("it ends after ", size(), " bytes, expected ", count,
                                       " more from byte ", offset, " on; the file was cut"));
}

std::string InputBytes::text(uint64_t offset, uint64_t count) const {
  check(offset, count);
  std::string text(count, '\0');
  read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

InputFile::InputFile(const std::filesystem::path& path) : InputBytes(path) {
  // Without O_NONBLOCK the opening of a pipe waits for its writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ == -1) throw FileError(path, "open", errno);
  struct stat status = {};
  const int code = ::fstat(fd_, &status) == -1 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  if (code == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<uint64_t>(status.st_size);
    return;
  }
  ::close(fd_);
  if (code != 0) throw FileError(path, "read", code);
  throw EnvironmentError(path.string() + ": is a pipe or a device, expected a regular file");
}

InputFile::~InputFile() {
  ::close(fd_);
}

void InputFile::read(uint64_t offset, std::span<std::byte> bytes) const {
  check(offset, bytes.size());
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got == -1 && errno == EINTR) continue;
    if (got == -1) throw FileError(path(), "read", errno);
    if (got == 0) throw CorruptFileError(path(), "the file became shorter while it was read");
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
}

std::shared_ptr<std::byte> InputFile::map() const {
  if (size_ == 0) return nullptr;
  struct stat status = {};
  if (::fstat(fd_, &status) == -1) throw FileError(path(), "stat", errno);
  if (static_cast<uint64_t>(status.st_size) < size_) {
    throw CorruptFileError(path(), concat("it has ", status.st_size, " bytes now, and had ", size_,
                                          " when it was opened"));
  }
  void* data = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_, 0);
  if (data == MAP_FAILED) throw FileError(path(), "map", errno);
  return {static_cast<std::byte*>(data),
          [size = size_](std::byte* start) { ::munmap(start, size); }};
}

void InputMemory::read(uint64_t offset, std::span<std::byte> bytes) const {
  check(offset, bytes.size());
  std::ranges::copy(bytes_.subspan(offset, bytes.size()), bytes.begin());
}

}  // namespace bellows::formats
